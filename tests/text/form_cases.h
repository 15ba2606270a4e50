/* form_cases.h: forms that the matcher is tested with, one of each kind that it treats in its own way. */
#define SCHEMA(JSON)                                                                                                                       \
    {                                                                                                                                      \
        .name = JSON, .options = {.kind = CALLA_FORM_JSON_SCHEMA, .strict_schema = true, .source = JSON }                                  \
    }
#define OBJECT(PROPERTIES, MORE) "{\"type\":\"object\",\"properties\":{" PROPERTIES "}," MORE "\"additionalProperties\":false}"
#define FUNCTION(NAME, PARAMETERS, MORE)                                                                                                   \
    "{\"type\":\"function\",\"function\":{\"name\":\"" NAME "\"" MORE ",\"parameters\":" PARAMETERS "}}"
#define TOOLS                                                                                                                              \
    "[" FUNCTION("get_weather",                                                                                                            \
                 OBJECT("\"city\":{\"type\":\"string\"},\"days\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":14},"                     \
                        "\"unit\":{\"enum\":[\"C\",\"F\"]},\"note\":{\"type\":\"string\",\"minLength\":2,\"maxLength\":9},\"from\":{"      \
                        "\"type\":\"string\",\"minLength\":3},\"where\":" OBJECT(                                                          \
                            "\"x\":{\"type\":\"number\"},\"y\":{\"type\":\"string\",\"maxLength\":4}", ""),                                \
                        "\"required\":[\"city\",\"days\"],"),                                                                              \
                 "") "," FUNCTION("get", "{}", ",\"strict\":false") "," FUNCTION("none", OBJECT("", ""), ",\"strict\":true") "]"

/* clang-format off */
{.name = "any JSON object", .options = {.kind = CALLA_FORM_JSON_OBJECT}},
SCHEMA("{\"type\":\"string\",\"minLength\":2,\"maxLength\":5}"),
SCHEMA("{\"type\":\"string\",\"maxLength\":200}"),
SCHEMA("{\"type\":\"string\",\"pattern\":\"^[a-z]+(-[a-z0-9]{2,3})*$\",\"maxLength\":12}"),
SCHEMA("{\"type\":\"string\",\"pattern\":\"a\"}"),
SCHEMA("{\"type\":\"array\",\"items\":{\"type\":\"string\",\"minLength\":1},\"minItems\":2,\"maxItems\":3}"),
SCHEMA(OBJECT("\"name\":{\"type\":\"string\"},\"names\":{\"type\":\"array\",\"items\":{\"type\":\"string\"}},\"n\":{\"type\":[\"integer\",\"null\"]}", "\"required\":[\"names\"],")),
SCHEMA("{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"boolean\"},\"ab\":{\"const\":1}},\"additionalProperties\":{\"type\":\"string\"}}"),
SCHEMA("{\"$defs\":{\"e\":{\"anyOf\":[{\"type\":\"number\"}," OBJECT("\"op\":{\"enum\":[\"+\",\"-\"]},\"l\":{\"$ref\":\"#/$defs/e\"},\"r\":{\"$ref\":\"#/$defs/e\"}", "\"required\":[\"op\",\"l\",\"r\"],") "]}},\"$ref\":\"#/$defs/e\"}"),
SCHEMA("{\"anyOf\":[{\"type\":\"string\",\"maxLength\":3},{\"type\":\"string\",\"format\":\"date\"},{\"type\":\"integer\",\"minimum\":-5,\"maximum\":120},{\"type\":\"array\",\"items\":{\"type\":\"string\",\"maxLength\":3}}]}"),
{.name = "expression", .options = {.kind = CALLA_FORM_REGEX, .source = "(yes|no|[0-9]{1,3})( .*)?"}},
{.name = "choice", .options = {.kind = CALLA_FORM_CHOICE, .source = "[\"red\",\"green\",\"greenish\",\"\\u00e9t\\u00e9\"]"}},
{.name = "tools", .options = {.tools_json = TOOLS}},
{.name = "required tools", .options = {.tools_json = TOOLS, .tool_choice = CALLA_TOOLS_REQUIRED}},
{.name = "one named tool", .options = {.tools_json = TOOLS, .tool_choice = CALLA_TOOLS_NAMED, .tool_name = "get_weather", .one_call = true}},
{.name = "tools or a document", .options = {.kind = CALLA_FORM_CHOICE, .source = "[\"red\",\"green\"]", .tools_json = TOOLS}},
    /* clang-format on */
