//! The model's tokenizer.
