"""What is measured on real models: block efficiency and its upper bound, decoding rounds, costs, extracted trees."""
