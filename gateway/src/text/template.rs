//! The model's chat template, rendered as Hugging Face's `apply_chat_template` does.

use jiff::{Timestamp, fmt::strtime};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value as Var;
use minijinja::{Environment, Error, ErrorKind, context};
use serde_json::Value;

use super::TextError;
use crate::openai::Messages;

/// Bounds instructions, and the bytes that they make to 64 each: a second of work at most.
const FUEL: u64 = 2_000_000;
const RENDERED_BYTES_MAX: usize = 16 << 20;

pub(super) struct Template {
    environment: Environment<'static>,
    specials: Var,
}

impl Template {
    /// `source` is the file `chat_template.jinja`, `config` the file `tokenizer_config.json`.
    pub(super) fn new(source: Option<Vec<u8>>, config: &Value) -> Result<Self, String> {
        let source = match (source, &config["chat_template"]) {
            (Some(source), _) => {
                String::from_utf8(source).map_err(|it| format!("chat_template.jinja: {it}"))?
            }
            (None, Value::String(source)) => source.clone(),
            (None, Value::Array(list)) => {
                let default = list.iter().find(|it| it["name"] == "default");
                let source = default.and_then(|it| it["template"].as_str());
                source
                    .ok_or("tokenizer_config.json names no template `default`")?
                    .to_owned()
            }
            _ => {
                return Err("neither chat_template.jinja nor tokenizer_config.json has one".into());
            }
        };
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build();
        environment.set_syntax(syntax.map_err(|it| it.to_string())?);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.set_fuel(Some(FUEL));
        environment.add_function("raise_exception", |message: String| -> Result<Var, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        environment.add_function("strftime_now", |format: &str| {
            strtime::format(format, Timestamp::now())
                .map_err(|it| Error::new(ErrorKind::InvalidOperation, it.to_string()))
        });
        environment.add_filter("tojson", tojson);
        environment
            .add_template_owned("chat", source)
            .map_err(|it| it.to_string())?;
        let specials = ["bos_token", "eos_token", "unk_token", "pad_token"]
            .iter()
            .filter_map(|name| Some((*name, special(&config[*name])?)));
        Ok(Self {
            environment,
            specials: Var::from_pairs(specials),
        })
    }

    pub(super) fn render(&self, messages: &Messages) -> Result<String, TextError> {
        let refused = |error: Error| {
            TextError::Messages(
                error
                    .detail()
                    .map_or_else(|| error.to_string(), str::to_owned),
            )
        };
        let messages: Var = messages
            .0
            .iter()
            .map(|it| Var::from_pairs([("role", &*it.role), ("content", &*it.content)]))
            .collect();
        let rendered = self
            .environment
            .get_template("chat")
            .and_then(|template| {
                let own = context! { messages, add_generation_prompt => true };
                template.render(context! { ..own, ..self.specials.clone() })
            })
            .map_err(refused)?;
        if rendered.len() > RENDERED_BYTES_MAX {
            let message = format!(
                "{} bytes of text: at most {RENDERED_BYTES_MAX}",
                rendered.len()
            );
            return Err(TextError::Messages(message));
        }
        Ok(rendered)
    }
}

/// A special token of `tokenizer_config.json`: a string, or an object around one.
pub(super) fn special(token: &Value) -> Option<&str> {
    token.as_str().or_else(|| token["content"].as_str())
}

/// As Hugging Face's filter: letters outside ASCII and HTML's stay as they are.
fn tojson(value: &Var, _: minijinja::value::Kwargs) -> Result<String, Error> {
    serde_json::to_string(value)
        .map_err(|it| Error::new(ErrorKind::InvalidOperation, it.to_string()))
}
