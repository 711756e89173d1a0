"""Number formats: what the codes of fp8, fp4, e8m0, int8 and int4 mean, alone and in blocks with scales."""
