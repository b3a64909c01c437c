//! OpenAI's completions API in front of the fabric: the part without sockets and threads.
//!
//! [`openai`] reads requests and writes answers; [`text`] turns text into token ids and back.

pub mod openai;
pub mod text;
