//! Errors as OpenAI's API reports them.

use serde_json::json;

/// Longest message, in bytes: a message may quote the request.
const MESSAGE_BYTES_MAX: usize = 512;

/// Error of a request, as its client gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// HTTP status.
    pub status: u16,
    /// OpenAI's `type`, e.g. `invalid_request_error`.
    pub kind: &'static str,
    /// OpenAI's `code`.
    pub code: Option<&'static str>,
    /// The field of the request at fault.
    pub param: Option<String>,
    /// What failed, why, and what to do.
    pub message: String,
}

impl ApiError {
    /// A request that is wrong in field `param`: status 400.
    pub fn invalid(param: &str, message: impl Into<String>) -> Self {
        Self {
            status: 400,
            kind: "invalid_request_error",
            code: Some("invalid_value"),
            param: Some(param.to_owned()),
            message: bounded(message.into()),
        }
    }

    /// A body that cannot be read at all: status 400.
    pub(super) fn unreadable(message: String) -> Self {
        Self {
            code: Some("invalid_json"),
            param: None,
            ..Self::invalid("", message)
        }
    }

    /// A failure that is not the client's: `status` is 500 or more.
    pub fn server(status: u16, message: impl Into<String>) -> Self {
        Self {
            status,
            kind: "server_error",
            code: None,
            param: None,
            message: bounded(message.into()),
        }
    }

    /// The JSON body.
    pub fn body(&self) -> String {
        let error = json!({"message": self.message, "type": self.kind, "param": self.param,
            "code": self.code});
        json!({"error": error}).to_string()
    }

    /// Appends the event that ends a stream which fails after its head was sent.
    pub fn event(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(format!("data: {}\n\n", self.body()).as_bytes());
    }
}

fn bounded(mut message: String) -> String {
    if message.len() > MESSAGE_BYTES_MAX {
        let head = message.floor_char_boundary(MESSAGE_BYTES_MAX - 64);
        let tail = message.ceil_char_boundary(message.len() - 48);
        message.replace_range(head..tail, " ... ");
    }
    message
}

impl std::fmt::Display for ApiError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HTTP {}: {}", self.status, self.message)
    }
}

impl std::error::Error for ApiError {}
