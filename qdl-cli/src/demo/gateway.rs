//! `qdl demo --gateway`: a question in text, by the gateway's HTTP, and its answer as it comes.

use std::{
    io::{BufRead, BufReader, Read, Write, stdout},
    net::TcpStream,
    path::Path,
    process::{Command, Stdio},
    sync::mpsc::{Receiver, channel},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use launch::{Accelerator, Running, on_path};
use serde_json::Value;

use super::session::{DemoFiles, Session};

/// The small model knows this one, and "What is the capital of France?" it answers in bad French.
const QUESTION: &str = "Name the capital of France.";
/// Limit for one answer.
const ANSWER: Duration = Duration::from_secs(60);
/// Longest part of an event on the screen.
const COLUMNS: usize = 96;
const CURL: &str = "curl";
const PATH: &str = "/v1/chat/completions";

/// Runs the demo in `output/gateway`. Returns exit code 0 if both forms of the answer agree, else
/// 1.
pub fn command(output: &Path) -> Result<i32> {
    let began = Instant::now();
    let (tokenizer, install) = (
        ".deps/models/smollm2/tokenizer.json",
        "`pip install 'qdl[llm]'`, or run `cargo xtask demo --gateway` in a checkout",
    );
    let files = DemoFiles::find(tokenizer, install)?;
    let configs = ["configs/llm/accelerator.yaml", "configs/llm/gateway.yaml"];
    let model = "SmolLM2-135M-Instruct, 8-bit weights";
    let session = Session::start(&output.join("gateway"), model, &files, configs)?;
    let gateway = session.start_gateway()?;
    let server = Server::of(&gateway)?;

    println!("\n== a question in text, and its answer as it comes");
    let streamed = server.stream()?;
    println!("\n== the same question, and its answer as one body");
    let whole = server.whole()?;
    let mut faults = Vec::new();
    if streamed != whole {
        let text = "the two answers differ, and the model always takes the most likely token";
        faults.push(text.to_owned());
    }
    if !whole.contains("Paris") {
        faults.push(format!(
            "{whole:?} does not name Paris: the model is broken"
        ));
    }
    if faults.is_empty() {
        println!("\nboth forms have the same text");
    }
    close(&faults, &server, &session, began.elapsed());
    Ok(i32::from(!faults.is_empty()))
}

/// The address of a gateway, and its model.
struct Server {
    /// `127.0.0.1:8000`.
    address: String,
    model: String,
}

/// An answer in progress. Its drop ends curl.
struct Answer {
    lines: Receiver<String>,
    until: Instant,
    curl: Option<Running>,
}

impl Server {
    /// Reads the line with which a gateway says that it is ready.
    fn of(gateway: &Accelerator) -> Result<Self> {
        let between = |before: &str, after: &str| {
            let (_, rest) = gateway.ready.split_once(before)?;
            rest.split_once(after).map(|(word, _)| word.to_owned())
        };
        let found = between("http://", "/v1").zip(between("model ", ","));
        let (address, model) =
            found.with_context(|| format!("no address in {:?}", gateway.ready))?;
        Ok(Server { address, model })
    }

    /// The request, with its keys in the order in which a person writes them.
    fn body(&self, stream: bool) -> String {
        let model = Value::from(&*self.model);
        let stream = if stream { ", \"stream\": true" } else { "" };
        format!(
            r#"{{"model": {model}, "messages": [{{"role": "user", "content": "{QUESTION}"}}]{stream}}}"#
        )
    }

    /// The command that a person types.
    fn typed(&self, stream: bool) -> String {
        let flags = if stream { "-sN" } else { "-s" };
        format!(
            "curl {flags} http://{}{PATH} -H 'Content-Type: application/json' -d \\\n    '{}'",
            self.address,
            self.body(stream)
        )
    }

    /// Asks with curl, or over a socket if curl is not installed.
    fn ask(&self, stream: bool) -> Result<Answer> {
        println!("$ {}", self.typed(stream));
        let body = self.body(stream);
        let until = Instant::now() + ANSWER;
        if !on_path(CURL) {
            println!("(curl is not installed: the demo sends the request itself)");
            let lines = lines(self.send(&body)?);
            let curl = None;
            return Ok(Answer { lines, until, curl });
        }
        let mut command = Command::new(CURL);
        command.args(["-sSN", "-H", "Content-Type: application/json", "-d"]);
        command
            .arg(body)
            .arg(format!("http://{}{PATH}", self.address));
        // A proxy for the machine's other requests does not know this address.
        command.env("no_proxy", "*").env("NO_PROXY", "*");
        let mut curl = Running::start(CURL, command.stdout(Stdio::piped()))?;
        let out = curl.stdout().context("curl: no standard output")?;
        Ok(Answer {
            lines: lines(out),
            until,
            curl: Some(curl),
        })
    }

    fn send(&self, body: &str) -> Result<TcpStream> {
        let what = || format!("cannot ask http://{}", self.address);
        let mut stream = TcpStream::connect(&self.address).with_context(what)?;
        let length = body.len();
        write!(
            stream,
            "POST {PATH} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Type: \
             application/json\r\nContent-Length: {length}\r\n\r\n{body}",
            self.address
        )
        .with_context(what)?;
        Ok(stream)
    }

    /// Prints an answer's events and its text, token by token. Returns the text.
    fn stream(&self) -> Result<String> {
        let began = Instant::now();
        let answer = self.ask(true)?;
        let (mut text, mut events, mut first) = (String::new(), 0, None);
        while let Some(line) = answer.next()? {
            let Some(data) = line.strip_prefix("data: ") else {
                answer.check(&line)?;
                continue;
            };
            if data == "[DONE]" {
                let first = first.unwrap_or_else(|| began.elapsed()).as_millis();
                let last = began.elapsed().as_millis();
                println!(
                    "\n\n{events} events: the first text after {first} ms, the end after {last} ms"
                );
                return Ok(text);
            }
            let event: Value = serde_json::from_str(data).context("an event of the stream")?;
            ensure!(
                event["error"].is_null(),
                "the answer failed: {}",
                event["error"]
            );
            events += 1;
            if events == 1 {
                println!("\nfirst event   {}", cut(&line));
                print!("the text      ");
            }
            let piece = event["choices"][0]["delta"]["content"].as_str();
            if let Some(piece) = piece.filter(|piece| !piece.is_empty()) {
                first.get_or_insert_with(|| began.elapsed());
                text += piece;
                print!("{piece}");
                // Ignore the error: standard output may be closed.
                let _ = stdout().flush();
            }
        }
        bail!("the stream ended without [DONE], after {events} events")
    }

    /// Prints an answer in one body. Returns its text.
    fn whole(&self) -> Result<String> {
        let answer = self.ask(false)?;
        while let Some(line) = answer.next()? {
            if line.starts_with('{') {
                answer.check(&line)?;
                let body: Value = serde_json::from_str(&line).context("the answer's body")?;
                println!("\n{body:#}");
                let text = body["choices"][0]["message"]["content"].as_str();
                return text.map(str::to_owned).context("the answer has no text");
            }
        }
        bail!("no answer came")
    }
}

impl Answer {
    /// The next line; `None` at the end.
    fn next(&self) -> Result<Option<String>> {
        use std::sync::mpsc::RecvTimeoutError as E;
        let left = self.until.saturating_duration_since(Instant::now());
        match self.lines.recv_timeout(left) {
            Ok(line) => Ok(Some(line)),
            Err(E::Disconnected) => Ok(None),
            Err(E::Timeout) => {
                let by = if self.curl.is_some() {
                    CURL
                } else {
                    "the socket"
                };
                Err(anyhow!(
                    "{by}: no whole answer after {} s",
                    ANSWER.as_secs()
                ))
            }
        }
    }

    /// Errors if a line is the body of a refusal.
    fn check(&self, line: &str) -> Result<()> {
        let refused = line.starts_with("{\"error\"");
        ensure!(!refused, "the gateway refused the request: {line}");
        Ok(())
    }
}

/// The lines of an answer, as a thread reads them.
fn lines(from: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let lines = BufReader::new(from).lines().map_while(Result::ok);
        // The receiver may have all it wants.
        let _ = lines.into_iter().try_for_each(|line| sender.send(line));
    });
    receiver
}

/// The beginning of a line.
fn cut(line: &str) -> String {
    match line.char_indices().nth(COLUMNS) {
        None => line.to_owned(),
        Some((end, _)) => format!("{}…", &line[..end]),
    }
}

fn close(faults: &[String], server: &Server, session: &Session, took: Duration) {
    let line = "-".repeat(78);
    let well = match faults {
        [] => "all well",
        _ => "NOT as it should be",
    };
    println!(
        "\n{line}\n OpenAI's API in front of an accelerator: {well} in {} s\n{line}",
        took.as_secs()
    );
    for fault in faults {
        println!("\n ! {fault}");
    }
    let [accelerator, gateway] = &session.configs;
    let (address, model) = (&server.address, &server.model);
    println!(
        "
 next: start both programs by hand, in two terminals, with these configurations:
         accelerator --config {}
         qdl gateway --config {} --output run
       and ask in a third, with curl as above, or with OpenAI's client (pip install openai):
         from openai import OpenAI
         gateway = OpenAI(base_url=\"http://{address}/v1\", api_key=\"none\")
         print(gateway.completions.create(model=\"{model}\", prompt=\"The sky is\").choices[0].text)
       curl http://{address}/metrics has the gateway's figures, run/requests.csv each request.
       Further accelerators are further lines in gateway.yaml; docs/gateway.md says the rest
{line}",
        accelerator.display(),
        gateway.display(),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_person_types_is_one_command_with_the_whole_request() {
        let server = Server {
            address: "127.0.0.1:8000".to_owned(),
            model: "m".to_owned(),
        };
        let typed = server.typed(true).replace("\\\n", "");
        let (_, body) = typed.split_once("-d ").expect("a body");
        let body: Value = serde_json::from_str(body.trim().trim_matches('\'')).expect("JSON");
        assert_eq!(body["messages"][0]["content"], QUESTION);
        assert_eq!(body["stream"], true);
        assert!(
            server
                .typed(false)
                .starts_with("curl -s http://127.0.0.1:8000/v1/chat/")
        );
        assert_eq!(cut(&"ä".repeat(200)).chars().count(), COLUMNS + 1);
    }

    #[test]
    fn a_stream_that_is_refused_or_cut_is_an_error() {
        let answer = |text: &'static str| Answer {
            lines: lines(text.as_bytes()),
            until: Instant::now() + ANSWER,
            curl: None,
        };
        let refused = answer("{\"error\":{\"message\":\"full\"}}\n");
        let line = refused.next().expect("in time").expect("a line");
        let error = refused.check(&line).expect_err("refused").to_string();
        assert!(error.contains("full"), "{error}");
        assert_eq!(answer("").next().expect("in time"), None);
    }
}
