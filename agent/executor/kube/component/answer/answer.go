package answer
