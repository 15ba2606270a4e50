/* form_cases.h: forms that the matcher is tested with, one of each kind that it treats in its own way. */
{.name = "any JSON object", .options = {.kind = CALLA_FORM_JSON_OBJECT}},
