//! What can go wrong with a request, by who has to act, and how each API says it.
//!
//! Handlers return the error itself; [`crate::api`]'s outermost layer knows path and request id and writes the
//! body in the form of the API that was asked.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use forerun::Error;
use forerun_engine::RejectError;
use forerun_grammar::GrammarError;
use forerun_text::TextError;
use serde_json::{Value, json};

/// Why a request has no answer.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum ServerError {
    /// The request makes no sense; `param` is where.
    #[error("{message}")]
    Invalid { param: Option<String>, message: String },
    /// A field or value this server does not do.
    #[error("`{field}` is not supported{}", .why.map(|w| format!(": {w}")).unwrap_or_default())]
    Unsupported { field: String, why: Option<&'static str> },
    /// A prompt that no context of this server holds.
    #[error(
        "this model's maximum context length is {context} tokens, and the prompt has {}{prompt}; shorten it",
        at_least(*.exact)
    )]
    ContextLength { prompt: usize, exact: bool, context: usize },
    #[error("the model `{asked}` is not served here; ask for {served}")]
    UnknownModel { asked: String, served: String },
    /// The operator has to act, or the model's files have to change.
    #[error("the model `{model}` cannot be loaded: {why}")]
    ModelFailed { model: String, why: String },
    /// Other models answer in its place.
    #[error("there is no room beside the models that are answering: {0}")]
    NoRoom(String),
    #[error("the request `{request_id}` is not remembered; only the latest are")]
    UnknownRequest { request_id: String },
    #[error("a key is needed: send `Authorization: Bearer KEY` or `x-api-key: KEY`")]
    NoKey,
    #[error("the key is not one this server accepts")]
    WrongKey,
    #[error("{0}")]
    Forbidden(&'static str),
    #[error("this server does not answer as {0:?}; start it with --allow-host NAME to add a name")]
    Host(String),
    #[error("there is nothing at {0}; /openapi.json lists what there is")]
    NoRoute(String),
    #[error("{method} is not allowed at {path}")]
    NoMethod { method: String, path: String },
    #[error("the body is longer than {0} bytes")]
    TooLarge(usize),
    #[error("the body has {found} {what}; at most {most} are taken")]
    TooMany { what: &'static str, found: usize, most: usize },
    #[error("the head of the request has {found} bytes; at most {most} are taken")]
    HeadTooLarge { found: usize, most: usize },
    #[error("the body did not arrive within {0} seconds")]
    TooSlow(u64),
    #[error("the content type is {0}; send application/json")]
    MediaType(String),
    #[error("the body's content-encoding is {0}, which is not supported; send it as it is")]
    Encoding(String),
    /// More requests than the server lets wait.
    #[error(
        "{waiting} requests are being answered or wait, which is all this server takes; try again later"
    )]
    Busy { waiting: usize },
    /// Not now: starting, draining or broken.
    #[error("{0}")]
    Unavailable(&'static str),
    /// The engine failed under the request.
    #[error("the engine failed: {0}")]
    Failed(String),
}

/// Whose form an error takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorForm {
    OpenAi,
    Anthropic,
    Ollama,
}

impl ErrorForm {
    /// The form of the API that lives at a path.
    pub(crate) fn of(path: &str) -> Self {
        if path.starts_with("/v1/messages") {
            Self::Anthropic
        } else if path.starts_with("/api/") {
            Self::Ollama
        } else {
            Self::OpenAi
        }
    }
}

impl ServerError {
    /// A value that cannot be used.
    pub(crate) fn invalid(param: &str, message: impl Into<String>) -> Self {
        Self::Invalid { param: Some(param.to_owned()), message: message.into() }
    }

    /// A field or value this server does not do.
    pub(crate) fn unsupported(field: &str, why: &'static str) -> Self {
        Self::Unsupported { field: field.to_owned(), why: Some(why) }
    }

    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::Invalid { .. } | Self::Unsupported { .. } | Self::ContextLength { .. } => {
                StatusCode::BAD_REQUEST
            }
            Self::UnknownModel { .. } | Self::UnknownRequest { .. } | Self::NoRoute(_) => {
                StatusCode::NOT_FOUND
            }
            Self::NoKey | Self::WrongKey => StatusCode::UNAUTHORIZED,
            Self::Forbidden(_) | Self::Host(_) => StatusCode::FORBIDDEN,
            Self::NoMethod { .. } => StatusCode::METHOD_NOT_ALLOWED,
            Self::TooLarge(_) | Self::TooMany { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::HeadTooLarge { .. } => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::TooSlow(_) => StatusCode::REQUEST_TIMEOUT,
            Self::MediaType(_) | Self::Encoding(_) => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::Busy { .. } => StatusCode::TOO_MANY_REQUESTS,
            Self::Unavailable(_) | Self::NoRoom(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Failed(_) | Self::ModelFailed { .. } => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    fn param(&self) -> Option<&str> {
        match self {
            Self::Invalid { param, .. } => param.as_deref(),
            Self::Unsupported { field, .. } => Some(field),
            Self::UnknownModel { .. } => Some("model"),
            _ => None,
        }
    }

    fn code(&self) -> Option<&'static str> {
        match self {
            Self::Invalid { .. } => None,
            Self::Unsupported { .. } => Some("unsupported_parameter"),
            Self::ContextLength { .. } => Some("context_length_exceeded"),
            Self::UnknownModel { .. } => Some("model_not_found"),
            Self::UnknownRequest { .. } => Some("unknown_request"),
            Self::NoKey | Self::WrongKey => Some("invalid_api_key"),
            Self::Forbidden(_) => Some("forbidden"),
            Self::Host(_) => Some("host_not_allowed"),
            Self::NoRoute(_) => Some("unknown_url"),
            Self::NoMethod { .. } => Some("method_not_allowed"),
            Self::TooLarge(_) | Self::TooMany { .. } => Some("request_too_large"),
            Self::HeadTooLarge { .. } => Some("head_too_large"),
            Self::TooSlow(_) => Some("request_timeout"),
            Self::MediaType(_) | Self::Encoding(_) => Some("unsupported_media_type"),
            Self::Busy { .. } => Some("queue_full"),
            Self::Unavailable(_) => Some("unavailable"),
            Self::ModelFailed { .. } => Some("model_failed"),
            Self::NoRoom(_) => Some("no_room"),
            Self::Failed(_) => Some("engine_failed"),
        }
    }

    /// The body in an API's own form.
    pub(crate) fn body(&self, form: ErrorForm, request_id: &str) -> Value {
        let message = self.to_string();
        match form {
            ErrorForm::OpenAi => json!({"error": {
                "message": message,
                "type": self.openai_type(),
                "param": self.param(),
                "code": self.code(),
            }}),
            ErrorForm::Ollama => json!({"error": message}),
            ErrorForm::Anthropic => json!({
                "type": "error",
                "error": {"type": self.anthropic_type(), "message": self.anthropic_message()},
                "request_id": request_id,
            }),
        }
    }

    fn openai_type(&self) -> &'static str {
        match self.status() {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        }
    }

    /// Anthropic's clients look for these words to tell that a conversation has to be made shorter.
    fn anthropic_message(&self) -> String {
        match self {
            Self::ContextLength { prompt, exact, context } => {
                let least = at_least(*exact);
                format!("prompt is too long: {least}{prompt} tokens > {context} maximum")
            }
            other => other.to_string(),
        }
    }

    fn anthropic_type(&self) -> &'static str {
        match self.status() {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
            StatusCode::INTERNAL_SERVER_ERROR => "api_error",
            _ => "invalid_request_error",
        }
    }
}

/// What stands before a number that is only known from below.
fn at_least(exact: bool) -> &'static str {
    if exact { "" } else { "at least " }
}

impl From<RejectError> for ServerError {
    fn from(error: RejectError) -> Self {
        if let RejectError::PromptTooLong { prompt, context } = error {
            return Self::ContextLength { prompt, exact: true, context };
        }
        let message = error.to_string();
        let param = match &error {
            RejectError::Sampling { name, .. } => Some((*name).to_owned()),
            RejectError::NoTokens => Some("max_tokens".to_owned()),
            _ => None,
        };
        Self::Invalid { param, message }
    }
}

impl From<GrammarError> for ServerError {
    fn from(error: GrammarError) -> Self {
        Self::invalid("response_format", error.to_string())
    }
}

impl From<Error> for ServerError {
    fn from(error: Error) -> Self {
        match error {
            Error::Text(error) => error.into(),
            Error::Grammar(error) => error.into(),
            Error::Reject(error) => error.into(),
            Error::MinTokens => Self::invalid("min_tokens", error.to_string()),
            Error::Vocabulary(why) => Self::invalid("response_format", why),
            Error::NoTemplate => Self::invalid(
                "messages",
                "this model has no chat template; continue text at /v1/completions instead",
            ),
            other => Self::Failed(other.to_string()),
        }
    }
}

/// Text comes from the client, so what the text side refuses is the client's to change.
impl From<TextError> for ServerError {
    fn from(error: TextError) -> Self {
        if let TextError::PromptTooLong { at_least, context } = error {
            return Self::ContextLength { prompt: at_least, exact: false, context };
        }
        let param = match &error {
            TextError::Message { path, .. } => Some(path.clone()),
            TextError::Template { .. } => Some("messages".to_owned()),
            TextError::EmptyStop { .. } => Some("stop".to_owned()),
            _ => None,
        };
        Self::Invalid { param, message: error.to_string() }
    }
}

/// A response without a body that carries the error, to be written by the outermost layer.
impl IntoResponse for ServerError {
    fn into_response(self) -> Response {
        let mut response = self.status().into_response();
        let headers = response.headers_mut();
        match self {
            Self::Busy { .. } => headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1")),
            Self::Unavailable(_) | Self::NoRoom(_) => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("5"))
            }
            Self::NoKey | Self::WrongKey => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))
            }
            Self::Encoding(_) => {
                headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"))
            }
            _ => None,
        };
        response.extensions_mut().insert(self);
        response
    }
}
