//! vLLM's `/v1/completions` as a client sees it that sends and wants token ids: an event of about
//! 240 bytes for each token, the last with a finish reason, then the usage and `[DONE]`.

use std::{
    io,
    time::{Duration, Instant},
};

use serde::Deserialize;
use tokio::net::{TcpListener, TcpStream};

use super::{
    Args,
    http::{Connection, Request},
};

#[derive(Deserialize)]
struct Asked {
    model: String,
    prompt: Vec<u32>,
    max_tokens: u32,
}

pub(super) async fn serve(args: &Args) -> anyhow::Result<()> {
    let listener = TcpListener::bind(args.listen).await?;
    println!("{}", listener.local_addr()?);
    loop {
        let (stream, _) = listener.accept().await?;
        let args = args.clone();
        tokio::spawn(async move {
            // A client that goes away in the middle is no fault of the server's.
            let _ = connection(stream, &args).await;
        });
    }
}

async fn connection(stream: TcpStream, args: &Args) -> io::Result<()> {
    let mut connection = Connection::new(stream)?;
    while let Some(request) = connection.request().await? {
        match (request.method.as_str(), request.path.as_str()) {
            ("GET", "/health") => connection.answer("200 OK", "text/plain", "").await?,
            ("GET", "/v1/models") => {
                let body = format!(
                    "{{\"object\":\"list\",\"data\":[{{\"id\":\"m\",\"object\":\"model\",\
                     \"max_model_len\":{}}}]}}",
                    args.context
                );
                connection
                    .answer("200 OK", "application/json", &body)
                    .await?;
            }
            ("GET", "/metrics") => {
                let body = "vllm:cache_config_info{enable_prefix_caching=\"False\"} 1.0\n";
                connection.answer("200 OK", "text/plain", body).await?;
            }
            ("POST", "/v1/completions") => complete(&mut connection, &request, args).await?,
            _ => connection.answer("404 Not Found", "text/plain", "").await?,
        }
    }
    Ok(())
}

async fn complete(to: &mut Connection, request: &Request, args: &Args) -> io::Result<()> {
    let asked: Asked = match serde_json::from_slice(&request.body) {
        Ok(asked) => asked,
        Err(e) => {
            let words = e.to_string();
            return to.answer("400 Bad Request", "text/plain", &words).await;
        }
    };
    let ms = |ms: f64| Duration::from_secs_f64(ms / 1000.0);
    let began = Instant::now();
    let seed = asked
        .prompt
        .iter()
        .fold(0u32, |h, id| h.wrapping_mul(31).wrapping_add(*id));
    to.begin().await?;
    for i in 0..asked.max_tokens {
        let due = began + ms(args.first_ms) + ms(args.step_ms) * i;
        tokio::time::sleep_until(due.into()).await;
        let id = seed.wrapping_add(i.wrapping_mul(2_654_435_761)) % args.vocab;
        let finish = match i + 1 == asked.max_tokens {
            true => "\"length\"",
            false => "null",
        };
        let event = format!(
            "{{\"id\":\"cmpl-0123456789abcdef0123456789abcdef\",\"object\":\"text_completion\",\
             \"created\":1790000000,\"model\":\"{}\",\"choices\":[{{\"index\":0,\"text\":\"\",\
             \"logprobs\":null,\"finish_reason\":{finish},\"stop_reason\":null,\
             \"token_ids\":[{id}],\"prompt_token_ids\":null}}],\"usage\":null}}",
            asked.model
        );
        to.event(&event).await?;
    }
    let (prompt, tokens) = (asked.prompt.len(), asked.max_tokens);
    let usage = format!(
        "{{\"id\":\"cmpl-0123456789abcdef0123456789abcdef\",\"object\":\"text_completion\",\
         \"created\":1790000000,\"model\":\"{}\",\"choices\":[],\"usage\":{{\"prompt_tokens\":\
         {prompt},\"total_tokens\":{},\"completion_tokens\":{tokens}}}}}",
        asked.model,
        prompt + tokens as usize
    );
    to.event(&usage).await?;
    to.event("[DONE]").await?;
    to.end().await
}
