#include "calla.h"
