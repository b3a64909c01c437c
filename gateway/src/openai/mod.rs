//! Bodies of OpenAI's completions API: requests, answers, events and errors.

mod error;
mod request;
mod response;
#[cfg(test)]
mod tests;

pub use error::ApiError;
pub use request::{Completion, Endpoint, Message, Messages, Prompt, Sampling, parse};
pub use response::{Answer, Finish, Identity, Usage, Writer, health, models};
