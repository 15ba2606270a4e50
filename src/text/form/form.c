/* form.c: the public calla_form_* and calla_matcher_* functions. */
#include "base/error.h"

calla_status calla_form_compile(const calla_text *text, const calla_form_options *options, calla_form **out, calla_error *err) {
    (void)text;
    (void)options;
    *out = NULL;
    return error_set(err, CALLA_E_UNSUPPORTED, "an answer's form: not implemented yet");
}

calla_form *calla_form_share(calla_form *form) { return form; }
void calla_form_release(calla_form *form) { (void)form; }

calla_status calla_matcher_open(calla_form *form, bool thinking, calla_matcher **out, calla_error *err) {
    (void)form;
    (void)thinking;
    *out = NULL;
    return error_set(err, CALLA_E_UNSUPPORTED, "an answer's form: not implemented yet");
}

const uint32_t *calla_matcher_mask(calla_matcher *matcher) {
    (void)matcher;
    return NULL;
}

calla_status calla_matcher_took(calla_matcher *matcher, int32_t id) {
    (void)matcher;
    (void)id;
    return CALLA_OK;
}

void calla_matcher_close(calla_matcher *matcher) { (void)matcher; }
