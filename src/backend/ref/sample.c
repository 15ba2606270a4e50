#include "backend/ref/sample.h"
