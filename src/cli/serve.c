/* serve.c: calla serve: opens the engine, hands it to the server, waits for its end. */
#include "server/server.h"

#include "base/log.h"
#include "cli/cli.h"
#include "cli/loading.h"

int command_serve(const options *o) {
    calla_error err = {0};
    calla_engine_options eo;
    calla_engine *engine = NULL;
    server *s = NULL;
    calla_status status = cli_engine_options(o, &eo, &err);
    if (status == CALLA_OK) status = loading_open_engine(&eo, &engine, &err);
    if (status == CALLA_OK) {
        server_options so = {
            .engine = engine,
            .host = o->value[OPTION_HOST].text,
            .port = (uint16_t)o->value[OPTION_PORT].integer,
            .drain_ms = (uint32_t)(o->value[OPTION_DRAIN].number * 1000.0 + 0.999),
            .key_file = o->value[OPTION_KEY_FILE].text,
            .allow_hosts = o->value[OPTION_ALLOW_HOST].text,
            .cors = o->value[OPTION_CORS].text,
            .log_prompts = o->value[OPTION_LOG_PROMPTS].given,
            .insecure = o->value[OPTION_INSECURE].given,
            .limits = {.requests = (uint32_t)o->value[OPTION_REQUESTS].integer},
        };
        status = server_open(&so, &s, &err);
    }
    if (status == CALLA_OK) {
        buffer banner = {0};
        server_describe(s, &banner);
        calla_error unwritten = {0}; /* a server without a standard output is still a server */
        if (cli_write_output("-", &banner, &unwritten) != CALLA_OK) log_warn("%s", unwritten.message);
    }
    if (status == CALLA_OK) status = server_run(s, &err);
    if (s) server_close(s);
    if (engine) calla_engine_close(engine);
    return status == CALLA_OK ? EXIT_OK : cli_fail_error(&err);
}
