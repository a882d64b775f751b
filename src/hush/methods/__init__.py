"""The papers' other methods, each planned, charged and accounted like training by gradients."""
