"""Units turn an instruction's Work and a CardSpec into demands: fixed time, alone time, amounts."""
