/* foreign_params.c: fields that no API calla speaks has, but that another server (llama.cpp, vLLM, SGLang, Ollama, Text Generation Inference
 * and what is built on them) or another of calla's dialects knows, so that clients send them here as well.  Whatever would change the length or
 * the text of an answer is here: it is honoured under its foreign name, or refused unless its value asks for nothing.  What only concerns a
 * server's own business (caches, slots, timings) is in no table, and thereby without effect. */
#include <stddef.h>
#include <string.h>

#include "server/conversation.h"

/* ------------------------------------------------- values that ask for nothing ------------------------------------------ */

static bool is_number(json_object *value) {
    return json_object_is_type(value, json_type_int) || json_object_is_type(value, json_type_double);
}

static bool is_zero(json_object *value) { return is_number(value) && json_object_get_double(value) == 0; }
static bool is_at_most_one(json_object *value) { return is_number(value) && json_object_get_double(value) <= 1; }
static bool is_not_positive(json_object *value) { return is_number(value) && json_object_get_double(value) <= 0; }
static bool is_minus_one(json_object *value) { return is_number(value) && json_object_get_double(value) == -1; }
static bool is_true(json_object *value) { return json_object_is_type(value, json_type_boolean) && json_object_get_boolean(value); }
static bool is_false_or_zero(json_object *value) { return params_is_false(value) || is_zero(value); }

/* llama.cpp's; with none the thought would stand in the content. */
static bool is_apart(json_object *value) {
    const char *format = params_string(value);
    return format && strcmp(format, "none") != 0;
}

/* -------------------------------------------------------- readers ------------------------------------------------------- */

static bool read_stop_ids(void *request, const char *name, json_object *value, api_error *e) {
    conversation *c = request;
    const size_t n = json_object_is_type(value, json_type_array) ? json_object_array_length(value) : SIZE_MAX;
    if (n > CONVERSATION_MAX_STOP)
        return api_error_set(e, 400, NULL, name, "%s must be an array of at most %d token ids", name, CONVERSATION_MAX_STOP);
    for (c->n_stop_ids = 0; c->n_stop_ids < n; c->n_stop_ids++) {
        int64_t id = 0;
        if (!params_integer(json_object_array_get_idx(value, c->n_stop_ids), 0, (int64_t)c->info->vocabulary - 1, &id))
            return api_error_set(e, 400, NULL, name, "%s[%zu] is not the id of a token; they run from 0 to %u", name, c->n_stop_ids,
                                 c->info->vocabulary - 1);
        c->stop_ids[c->n_stop_ids] = (int32_t)id;
    }
    return true;
}

/* ------------------------------------------------------- the table ------------------------------------------------------ */

#define AT(field) .offset = offsetof(conversation, field)
#define SAID(field) .said_offset = offsetof(conversation, field)
#define LENGTH(field)                                                                                                                      \
    {.name = field, .kind = PARAM_CUSTOM, .read = conversation_read_length, .type = "integer", .help = "The limit of the answer's length."}
#define STOP(field)                                                                                                                        \
    {.name = field,                                                                                                                        \
     .kind = PARAM_CUSTOM,                                                                                                                 \
     .read = conversation_read_stop,                                                                                                       \
     .type = "string or array",                                                                                                            \
     .help = "At most 16 strings that end the answer."}
#define REFUSED(field, neutral, instead) {.name = field, .kind = PARAM_REFUSED, .harmless = neutral, .help = instead}

#define SAMPLE "the samplers are temperature, top_k, top_p and min_p"
#define PENALTY "penalties look at all of prompt and answer"
#define TEMPLATE "the model's own chat template is the only one"
#define LIKELIHOODS "ask /v1/chat/completions or /v1/completions for logprobs"
#define NO_ADAPTERS "this server has one model and no adapters"
#define NO_FLOOR "an answer ends where the model ends it; ignore_eos goes on to max_tokens"

static const param rows[] = {
    LENGTH("max_tokens"),
    LENGTH("max_completion_tokens"),
    LENGTH("max_output_tokens"),
    LENGTH("n_predict"),
    LENGTH("num_predict"),
    LENGTH("max_new_tokens"),
    STOP("stop"),
    STOP("stop_sequences"),
    {.name = "stop_token_ids",
     .kind = PARAM_CUSTOM,
     .read = read_stop_ids,
     .type = "array",
     .help = "At most 16 ids of tokens that end the answer, besides the model's own."},
    {.name = "ignore_eos", .kind = PARAM_BOOL, AT(ignore_stop), .help = "The model's own end does not end the answer."},
    {.name = "repeat_penalty",
     .kind = PARAM_FLOAT,
     AT(sampling.repetition_penalty),
     .min = 0.01,
     .max = 10,
     .help = "As `repetition_penalty`."},
    {.name = "regex", .kind = PARAM_CUSTOM, .read = conversation_read_guided_regex, .type = "string", .help = "As `guided_regex`."},
    {.name = "continue_final_message",
     .kind = PARAM_BOOL,
     AT(continue_last),
     SAID(said_continue),
     .help = "`false`: a last message of the assistant is not continued, a new turn begins behind it."},

    REFUSED("messages", NULL, "send them to /v1/chat/completions"),
    REFUSED("input", NULL, "send it to /v1/responses"),
    REFUSED("prompt", NULL, "send it to /v1/completions"),
    REFUSED("system", params_is_empty, "send a message of the role system"),
    REFUSED("instructions", params_is_empty, "send a message of the role system"),
    REFUSED("n", params_is_one, "this API gives one answer: send several requests"),
    REFUSED("logprobs", is_false_or_zero, LIKELIHOODS ", or /v1/responses for top_logprobs"),
    REFUSED("top_logprobs", is_zero, LIKELIHOODS),
    REFUSED("n_probs", is_zero, LIKELIHOODS),
    REFUSED("prompt_logprobs", params_is_false, "ask /v1/completions for echo and logprobs"),
    REFUSED("return_tokens_as_token_ids", params_is_false, "log-probabilities name tokens by their text"),
    REFUSED("options", params_is_empty, "send its fields beside the others"),
    REFUSED("format", params_is_empty, "send response_format"),
    REFUSED("ebnf", params_is_empty, "send a guided_regex or a JSON schema"),
    REFUSED("structural_tag", params_is_empty, "send tools, or a response_format"),
    REFUSED("images", params_is_empty, "this server takes text only"),
    REFUSED("documents", params_is_empty, "write them into a message"),
    REFUSED("chat_template", params_is_empty, TEMPLATE),
    REFUSED("template", params_is_empty, TEMPLATE),
    REFUSED("raw", params_is_false, "send the prompt to /v1/completions"),
    REFUSED("add_generation_prompt", is_true, "an answer is a turn of the assistant; continue its last message, or ask /v1/completions"),
    REFUSED("reasoning_format", is_apart, "thoughts come apart from the content; enable_thinking turns them off"),
    REFUSED("separate_reasoning", is_true, "thoughts come apart from the content; enable_thinking turns them off"),
    REFUSED("parse_tool_calls", is_true, "ask /v1/completions for the text as the model writes it"),
    REFUSED("skip_special_tokens", is_true, "ask /v1/completions for the text as the model writes it"),
    REFUSED("include_stop_str_in_output", params_is_false, "the answer ends in front of the stop string"),
    REFUSED("no_stop_trim", params_is_false, "the answer ends in front of the stop string"),
    REFUSED("stop_regex", params_is_empty, "send stop strings"),
    REFUSED("truncate_prompt_tokens", NULL, "a prompt that does not fit is an error: shorten it"),
    REFUSED("min_tokens", is_zero, NO_FLOOR),
    REFUSED("min_new_tokens", is_zero, NO_FLOOR),
    REFUSED("min_length", is_zero, NO_FLOOR),
    REFUSED("max_length", NULL, "it counts the prompt as well: send max_tokens"),
    REFUSED("max_time", is_not_positive, "send max_tokens, or close the connection"),
    REFUSED("t_max_predict_ms", is_not_positive, "send max_tokens, or close the connection"),
    REFUSED("n_indent", is_zero, "send a guided_regex"),
    REFUSED("repetition_detection", params_is_empty, "send a presence_penalty or max_tokens"),
    REFUSED("do_sample", is_true, "send a temperature of 0"),
    REFUSED("use_beam_search", params_is_false, "ask for n answers and choose among them"),
    REFUSED("num_beams", is_at_most_one, "ask for n answers and choose among them"),
    REFUSED("length_penalty", params_is_one, "ask for n answers and choose among them"),
    REFUSED("samplers", params_is_empty, SAMPLE),
    REFUSED("min_keep", is_at_most_one, SAMPLE),
    REFUSED("typical_p", params_is_one, SAMPLE),
    REFUSED("tfs_z", params_is_one, SAMPLE),
    REFUSED("top_a", is_zero, SAMPLE),
    REFUSED("top_n_sigma", is_not_positive, SAMPLE),
    REFUSED("epsilon_cutoff", is_zero, SAMPLE),
    REFUSED("eta_cutoff", is_zero, SAMPLE),
    REFUSED("smoothing_factor", is_zero, SAMPLE),
    REFUSED("mirostat", is_zero, SAMPLE),
    REFUSED("dynatemp_range", is_zero, SAMPLE),
    REFUSED("xtc_probability", is_zero, SAMPLE),
    REFUSED("penalty_alpha", is_zero, SAMPLE),
    REFUSED("guidance_scale", params_is_one, SAMPLE),
    REFUSED("negative_prompt", params_is_empty, SAMPLE),
    REFUSED("logits_processors", params_is_empty, "send a logit_bias"),
    REFUSED("custom_logit_processor", params_is_empty, "send a logit_bias"),
    REFUSED("allowed_token_ids", params_is_empty, "send a logit_bias or a guided_regex"),
    REFUSED("bad_words", params_is_empty, "send a logit_bias"),
    REFUSED("dry_multiplier", is_zero, "send a presence_penalty or a repetition_penalty"),
    REFUSED("no_repeat_ngram_size", is_zero, "send a presence_penalty or a repetition_penalty"),
    REFUSED("encoder_repetition_penalty", params_is_one, "send a repetition_penalty"),
    REFUSED("repeat_last_n", is_minus_one, PENALTY),
    REFUSED("repetition_context_size", is_minus_one, PENALTY),
    REFUSED("lora", params_is_empty, NO_ADAPTERS),
    REFUSED("lora_path", params_is_empty, NO_ADAPTERS),
    REFUSED("adapters", params_is_empty, NO_ADAPTERS),
};

const param_table foreign_params = {.prefix = "", .rows = rows, .n = sizeof rows / sizeof *rows};
