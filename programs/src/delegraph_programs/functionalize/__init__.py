"""Makes exported programs functional, without retracing them."""
