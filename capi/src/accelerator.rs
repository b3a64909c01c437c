//! The accelerator's side: a node whose engine is the program.

use std::{
    collections::VecDeque,
    mem,
    sync::{Arc, Mutex, mpsc},
    time::Duration,
};

use fabric::os::lock;
use qdl::{
    config::AcceleratorConfig,
    model::{Lengths, ModelSpec},
    request::{OptionSet, RequestOption, RequestOptions},
    run::{Node, NodeFigures, NodeParams, Stop},
    serve::{Arrival, Finished, Origin, OutputPart, Service, respond_all},
    topology::spell_out,
};
use record::EngineInfo;
use serde_json::json;

use crate::{
    events::{Bell, Notes},
    failure::Failure,
    frontend::Written,
    numbered::Numbered,
    tickets::Ticket,
    types::{self, qdl_answer, qdl_arrival},
};

/// Time limit for the node's thread to end.
const LEAVING: Duration = Duration::from_secs(10);

/// Samples that have arrived and that the program has not taken. Slots bound their number.
struct Mail {
    arrived: Mutex<VecDeque<Arrival>>,
    bell: Bell,
}

impl Service for Mail {
    fn arrived(&self, arrivals: &mut Vec<Arrival>) {
        let is_first = {
            let mut all = lock(&self.arrived);
            let was_empty = all.is_empty();
            all.extend(arrivals.drain(..));
            was_empty && !all.is_empty()
        };
        if is_first {
            self.bell.ring();
        }
    }
}

/// A node.
pub struct Accelerator {
    name: String,
    address: String,
    model: ModelSpec,
    lengths: Lengths,
    max_output: usize,
    engine: String,
    options: OptionSet,
    mail: Arc<Mail>,
    tickets: Mutex<Numbered<Ticket>>,
    figures: Box<dyn Fn() -> NodeFigures + Send + Sync>,
    stop: Stop,
    ended: Mutex<Option<mpsc::Receiver<()>>>,
    /// Lines for the log.
    pub notes: Arc<Notes>,
}

/// The set of the options whose bits are set.
fn options_of(bits: u32) -> OptionSet {
    let all = RequestOption::ALL.into_iter();
    all.filter(|option| bits & 1 << *option as u32 != 0)
        .collect()
}

impl Accelerator {
    /// Opens the node's ports and serves frontends, one after another, until [`Self::finish`].
    /// `options` are the bits of those that the engine acts on.
    pub fn serve(written: Written<'_>, engine: &str, options: u32) -> Result<Self, Failure> {
        let mut config: AcceleratorConfig = written.read()?;
        let nics = spell_out(&config.nics, true).map_err(Failure::config)?;
        config.nics = nics.into_iter().map(|(_, nic)| nic).collect();
        let missing = || {
            Failure::config("model: add `inputs` and `output`: no engine reads them from a file")
        };
        let model = config.model.spec().ok_or_else(missing)?;
        let options = options_of(options);
        let mut params = NodeParams::new(engine, model.clone());
        params.sut_name = format!("{} ({} on {engine})", config.node, model.name);
        params.engine_info = EngineInfo {
            tokens: model.answers_tokens(),
            options,
            ..params.engine_info
        };
        let bell = Bell::new().map_err(Failure::system)?;
        let mail = Arc::new(Mail {
            arrived: Mutex::default(),
            bell,
        });
        let service: Arc<dyn Service> = mail.clone();
        let node = Node::start(&config, params, &service).map_err(Failure::system)?;
        let notes = Arc::new(Notes::default());
        let (stop, address) = (node.stopper(), node.control_address().to_string());
        let figures = Box::new(node.figures());
        let (end, ended) = mpsc::channel();
        let log = notes.clone();
        let thread = std::thread::Builder::new().name("qdl-node".to_owned());
        let serve = move || {
            node.run_with(&mut |report| {
                let (frontend, total) = (&report.frontend, report.total());
                log.add(&format!(
                    "frontend {frontend} has left: {} answers",
                    total.answered
                ));
            });
            // An error means that the program does not wait for the end.
            let _ = end.send(());
        };
        thread.spawn(serve).map_err(Failure::system)?;
        Ok(Accelerator {
            name: config.node,
            address,
            lengths: Lengths::of_outputs(&model).map_err(Failure::config)?,
            max_output: model.max_output_bytes().unwrap_or(usize::MAX),
            model,
            engine: engine.to_owned(),
            options,
            mail,
            tickets: Mutex::new(Numbered::new()),
            figures,
            stop,
            ended: Mutex::new(Some(ended)),
            notes,
        })
    }

    /// The bell that rings for arrivals.
    pub fn bell(&self) -> &Bell {
        &self.mail.bell
    }

    /// Name of the node, its model and its engine.
    pub fn name(&self) -> String {
        format!("{} ({})", self.name, self.model.name)
    }

    /// Address of the control port.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Counts so far, as JSON.
    pub fn counters(&self) -> String {
        let (counters, [up, lost]) = (self.figures)();
        json!({"counters": counters, "connections": {"up": up, "lost": lost}}).to_string()
    }

    /// Waits for samples and writes them to `out`; returns their number. Each goes to one call.
    pub fn arrivals(&self, out: &mut [qdl_arrival], most: Duration) -> usize {
        self.mail.bell.wait(most, || self.take(out))
    }

    fn take(&self, out: &mut [qdl_arrival]) -> usize {
        let mut n = 0;
        while n < out.len() {
            let taken: Vec<_> = {
                self.mail.bell.hush();
                let mut all = lock(&self.mail.arrived);
                let fit = all.len().min(out.len() - n);
                let taken = all.drain(..fit).collect();
                if !all.is_empty() {
                    self.mail.bell.ring();
                }
                taken
            };
            if taken.is_empty() {
                break;
            }
            for arrival in taken {
                if let Some(arrived) = self.admit(arrival) {
                    out[n] = arrived;
                    n += 1;
                }
            }
        }
        n
    }

    /// Gives an arrival a ticket, unless the frontend is gone or the engine lacks an option.
    fn admit(&self, arrival: Arrival) -> Option<qdl_arrival> {
        if !arrival.is_wanted() {
            return None;
        }
        let options = match self.options(&arrival) {
            Ok(options) => options,
            Err(why) => {
                arrival.refuse(&why);
                return None;
            }
        };
        let token_limit = options.token_limit.map_or(0, |n| n.get());
        let mut ticket = Ticket::new(arrival, self.max_output, options);
        let arrival = ticket.arrival();
        let mut arrived = qdl_arrival {
            ticket: 0,
            data: arrival.input().as_ptr().cast(),
            out: arrival.output().as_mut_ptr().cast(),
            len: arrival.input_len() as u32,
            room: ticket.room(),
            flags: ticket
                .options
                .as_ref()
                .map_or(0, |_| types::QDL_HAS_OPTIONS),
            token_limit,
        };
        arrived.ticket = lock(&self.tickets).add(ticket);
        Some(arrived)
    }

    /// The options of an arrival, or why it is refused.
    fn options(&self, arrival: &Arrival) -> Result<RequestOptions, String> {
        let options = arrival.options().map_err(|e| e.to_string())?;
        let lacks = options.needs().without(self.options);
        if lacks.is_empty() {
            return Ok(options);
        }
        // The option comes first: a short slot cuts the end off.
        Err(format!("no option `{lacks}` in engine {}", self.engine))
    }

    /// Options of a sample that the program has taken.
    pub fn options_of(&self, ticket: u64) -> Result<RequestOptions, Failure> {
        let mut tickets = lock(&self.tickets);
        let ticket = tickets.get(ticket);
        let ticket = ticket.ok_or_else(|| Failure::usage("no sample has this ticket"))?;
        Ok(ticket.options.as_deref().cloned().unwrap_or_default())
    }

    /// Sends parts, answers and refusals; writes the status of each. Returns how many were not
    /// sent.
    ///
    /// # Safety
    /// The bytes of each answer are readable.
    pub unsafe fn respond(&self, answers: &mut [qdl_answer]) -> usize {
        let mut out = Outbox::default();
        {
            let mut tickets = lock(&self.tickets);
            for answer in answers.iter_mut() {
                // SAFETY: the caller promises these bytes.
                let data = unsafe { bytes_of(answer) };
                answer.status = self.one(&mut tickets, answer, data, &mut out);
            }
            // Under the lock: of two threads, the second sends the later part.
            for (origin, parts) in &out.parts {
                origin.parts(parts);
            }
        }
        respond_all(out.whole, &mut Vec::new());
        for (ticket, why) in out.refused {
            ticket.refuse(&why);
        }
        // Their drop tells the frontend.
        drop(out.gone);
        answers.iter().filter(|answer| answer.status != 0).count()
    }

    /// Appends one answer, and puts what is to be sent into `out`.
    fn one(
        &self,
        tickets: &mut Numbered<Ticket>,
        answer: &qdl_answer,
        data: Option<&[u8]>,
        out: &mut Outbox,
    ) -> i32 {
        let Some(ticket) = tickets.get(answer.ticket) else {
            return types::QDL_E_USAGE;
        };
        let mut wrong = None;
        match answer.kind {
            types::QDL_PART | types::QDL_DONE => {
                wrong = ticket.append(data, answer.len).err();
                if wrong.is_none() && answer.kind == types::QDL_PART {
                    if ticket.arrival().is_wanted() {
                        out.add_part(ticket);
                        return 0;
                    }
                    out.gone.extend(tickets.take(answer.ticket));
                    return types::QDL_GONE;
                }
                if wrong.is_none() && self.lengths.rows(ticket.len()).is_none() {
                    let (len, lengths) = (ticket.len(), &self.lengths);
                    wrong = Some(format!(
                        "an answer of {len} bytes, and the model has {lengths}"
                    ));
                }
            }
            types::QDL_REFUSED => {}
            kind => wrong = Some(format!("no answer has kind {kind}")),
        }
        let Some(ticket) = tickets.take(answer.ticket) else {
            return types::QDL_E_USAGE;
        };
        match (wrong, answer.kind) {
            (None, types::QDL_REFUSED) => {
                let why = String::from_utf8_lossy(data.unwrap_or_default()).into_owned();
                out.refused.push((ticket, why));
                0
            }
            (None, _) => {
                out.whole.push(ticket.finish());
                0
            }
            (Some(why), _) => {
                self.notes.add(&format!("refused a sample: {why}"));
                out.refused.push((ticket, why));
                types::QDL_E_USAGE
            }
        }
    }

    /// Stops serving: the frontend hears it and goes on elsewhere. A second call has no effect.
    pub fn finish(&self) {
        self.stop.stop("the program has stopped its node");
        if let Some(ended) = lock(&self.ended).take() {
            // A thread that does not end in time is left alone.
            let _ = ended.recv_timeout(LEAVING);
        }
        self.mail.bell.close();
        // Without their connections, the samples are not answered any more.
        drop(mem::take(&mut *lock(&self.mail.arrived)));
        drop(lock(&self.tickets).take_all());
    }
}

/// What one call of [`Accelerator::respond`] sends. The parts leave first: from then on a slot may
/// be another sample's.
#[derive(Default)]
struct Outbox {
    /// By connection: a call's answers belong to few.
    parts: Vec<(Arc<dyn Origin>, Vec<OutputPart>)>,
    whole: Vec<(Arrival, Finished)>,
    refused: Vec<(Ticket, String)>,
    /// Samples whose answers the frontend does not want any more.
    gone: Vec<Ticket>,
}

impl Outbox {
    fn add_part(&mut self, ticket: &mut Ticket) {
        let Some(part) = ticket.part() else { return };
        let origin = ticket.arrival().origin();
        let of_it = self.parts.iter_mut().find(|(o, _)| Arc::ptr_eq(o, origin));
        match of_it {
            Some((_, parts)) => parts.push(part),
            None => self.parts.push((origin.clone(), vec![part])),
        }
    }
}

/// The bytes beside an answer; `None` where the program has written the output slot itself.
///
/// # Safety
/// `answer.data` is null, or readable for `answer.len` bytes while the slice lives.
unsafe fn bytes_of<'a>(answer: &qdl_answer) -> Option<&'a [u8]> {
    let is_here = !answer.data.is_null();
    // SAFETY: the caller promises it.
    is_here.then(|| unsafe { std::slice::from_raw_parts(answer.data.cast(), answer.len as usize) })
}
