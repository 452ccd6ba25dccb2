"""Knowledge about engines, boxes, models and heads, and plans made of it. Pure: reads its own data, starts nothing."""
