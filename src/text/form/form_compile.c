/* form_compile.c: calla_form_options → a program. */
#include "text/form/form_any.h"

calla_status form_program_compile(const calla_form_options *options, form_program **out, calla_error *err) {
    form_build b;
    *out = NULL;
    form_build_open(&b, err);
    if (options->kind != CALLA_FORM_JSON_OBJECT) form_fail(&b.work, CALLA_E_UNSUPPORTED, "form: only JSON objects yet");
    const uint32_t root = json_any_machine(&b, JSON_ANY_OBJECT, false);
    form_build_run(&b);
    const calla_status status = form_link(&b, root, root, out);
    form_build_close(&b);
    return status;
}
