/* template_value.h: JSON values seen the way the template's Python sees them. */
#ifndef CALLA_TEXT_TEMPLATE_VALUE_H
#define CALLA_TEXT_TEMPLATE_VALUE_H

#include "text/template.h"

/* float.__repr__ of a finite number; int.__repr__ of an integer node. */
void value_append_float(buffer *out, double v);
void value_append_integer(buffer *out, json_object *value);
/* str(value) of a scalar; false for objects and arrays. */
bool value_append_str(buffer *out, json_object *value);

/* value is the string `s`. */
bool value_is(json_object *value, const char *s);
/* object.key, NULL where value is no object, has no such key, or holds null there. */
json_object *value_get(json_object *value, const char *key);
/* value is an object with this key, null or not. */
bool value_has(json_object *value, const char *key);

#endif
