//! The frontend's side: a cluster, from its configuration to its record.

use std::{
    mem,
    path::Path,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard},
    time::Duration,
};

use fabric::{Region, SourceId, clock::now_ns, wire::Stream};
use qdl::{
    config::{self, FrontendConfig, NoSection},
    dispatch::{Sample, WARM_UP_ID},
    model::Lengths,
    request::RequestOptions,
    run::{Cluster, ClusterEvent, SampleMemory, settle_connections},
    topology::spell_out,
};
use serde_json::json;

use crate::{
    events::{Events, Filler},
    failure::Failure,
    sources::Sources,
    types::{self, qdl_sample},
};

/// Answers up to this length are copied once they arrive, so that their slots are free at once.
const COPY_UP_TO: usize = 16 << 10;

/// A cluster.
pub struct Frontend {
    config: FrontendConfig,
    lengths: Lengths,
    stage: RwLock<Stage>,
    /// What came of the samples.
    pub events: Arc<Events>,
}

enum Stage {
    /// Memory may be registered.
    Open(Sources),
    Connecting,
    Up(Box<(Cluster, Sources)>),
    /// The record of the run, as JSON.
    Finished(String),
}

/// A configuration: YAML (or JSON) in a file, or as text.
#[derive(Clone, Copy, Debug)]
pub enum Written<'a> {
    /// Path of a file.
    File(&'a Path),
    /// The text. Paths in it are relative to the working folder.
    Text(&'a str),
}

impl Written<'_> {
    /// Reads a node's configuration, and ignores keys of other crates.
    ///
    /// # Errors
    /// The text of all problems.
    pub fn read<C: config::ConfigFile>(self) -> Result<C, Failure> {
        let read = match self {
            Written::File(path) => config::load::<C, NoSection>(path, None),
            Written::Text(text) => config::parse::<C, NoSection>(text, "text", Path::new("")),
        };
        read.map(|(config, _)| config).map_err(Failure::config)
    }
}

impl Frontend {
    /// Reads a configuration. Answers in tokens come as they are made unless `stream` says
    /// otherwise.
    pub fn open(written: Written<'_>) -> Result<Self, Failure> {
        let mut config: FrontendConfig = written.read()?;
        let nics = spell_out(&config.nics, false).map_err(Failure::config)?;
        config.nics = nics.into_iter().map(|(_, nic)| nic).collect();
        settle_connections(&mut config);
        if config.model.answers_tokens() {
            config.stream.get_or_insert(Stream::All);
        }
        Ok(Frontend {
            lengths: Lengths::of_inputs(&config.model).map_err(Failure::config)?,
            events: Arc::new(Events::new().map_err(Failure::system)?),
            stage: RwLock::new(Stage::Open(Sources::default())),
            config,
        })
    }

    fn stage(&self) -> RwLockReadGuard<'_, Stage> {
        self.stage.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, stage: Stage) -> Stage {
        let mut own = self.stage.write().unwrap_or_else(PoisonError::into_inner);
        mem::replace(&mut *own, stage)
    }

    /// Registers memory; returns the number of regions so far.
    ///
    /// # Safety
    /// The memory stays mapped until the cluster is closed.
    pub unsafe fn register(&self, base: *mut std::ffi::c_void, len: usize) -> Result<i64, Failure> {
        let mut stage = self.stage.write().unwrap_or_else(PoisonError::into_inner);
        match &mut *stage {
            // SAFETY: the caller promises the memory's life.
            Stage::Open(sources) => Ok(unsafe { sources.add(base, len) }? as i64 + 1),
            _ => Err(Failure::state(
                "NICs learn the memory when they connect: call qdl_register before qdl_connect",
            )),
        }
    }

    /// Connects to every accelerator, and warms the connections up with these samples, if any.
    pub fn connect(&self, warm_up: &[qdl_sample]) -> Result<(), Failure> {
        let sources = {
            let mut stage = self.stage.write().unwrap_or_else(PoisonError::into_inner);
            match mem::replace(&mut *stage, Stage::Connecting) {
                Stage::Open(sources) => sources,
                other => {
                    *stage = other;
                    return Err(Failure::state("qdl_connect was called before"));
                }
            }
        };
        let made = self.make(&sources, warm_up);
        let back = sources.clone();
        let (stage, result) = match made {
            Ok(cluster) => (Stage::Up(Box::new((cluster, sources))), Ok(())),
            Err(failure) => (Stage::Open(back), Err(failure)),
        };
        self.set(stage);
        result
    }

    fn make(&self, sources: &Sources, warm_up: &[qdl_sample]) -> Result<Cluster, Failure> {
        let mut regions = sources.regions.clone();
        if regions.is_empty() {
            // A program without memory of its own can wait, poll and close.
            regions.push(Arc::new(Region::new(1).map_err(Failure::system)?));
        }
        let mut samples = self.samples(sources, warm_up)?;
        samples.iter_mut().for_each(|sample| sample.id = WARM_UP_ID);
        let memory = SampleMemory {
            sources: regions,
            staged_from: None,
        };
        let most = self.config.model.max_output_bytes();
        let keeps = most.is_none_or(|bytes| bytes > COPY_UP_TO);
        let events = self.events.clone();
        let mut make = |_| {
            Box::new(Filler {
                events: events.clone(),
                keeps,
            }) as _
        };
        let events = self.events.clone();
        let on_event = move |event: ClusterEvent<'_>| match event {
            ClusterEvent::CompleteEmpty(samples) => events.lose(samples),
            ClusterEvent::Aborted(cause) => events.abort(cause),
            ClusterEvent::Note(line) | ClusterEvent::Waiting(line) => events.notes.add(line),
        };
        let cluster = Cluster::connect(&self.config, memory, &mut make, Arc::new(on_event));
        let cluster = cluster.map_err(Failure::system)?;
        if !samples.is_empty() {
            cluster.warm_up(samples).map_err(Failure::system)?;
        }
        Ok(cluster)
    }

    /// Checks samples, and finds their memory.
    fn samples(&self, sources: &Sources, all: &[qdl_sample]) -> Result<Vec<Sample>, Failure> {
        let issued_ns = now_ns();
        let sample =
            |(i, s): (usize, &qdl_sample)| {
                let refuse = |why: &dyn std::fmt::Display| {
                    Failure::usage(format!(
                        "samples[{i}] (id {}): {why}; none was issued",
                        s.id
                    ))
                };
                if s.id == WARM_UP_ID {
                    return Err(refuse(&"2^64 - 1 is no id"));
                }
                let (source, offset) = sources.find(s.data, s.len).ok_or_else(|| {
                    let (len, at) = (s.len, s.data as usize);
                    refuse(&format!(
                        "{len} bytes at {at:#x} lie in no registered memory"
                    ))
                })?;
                let has_options = s.flags & types::QDL_HAS_OPTIONS != 0;
                let options = match has_options {
                false => 0,
                true => self.options_len(sources, source, offset, s.len).ok_or_else(|| {
                    refuse(&"no block of qdl_options_write is there, or the model has no tokens")
                })?,
            };
                let payload = s.len as usize - options;
                if self.lengths.rows(payload).is_none() {
                    let lengths = &self.lengths;
                    return Err(refuse(&format!(
                        "{payload} bytes, and the model takes {lengths}"
                    )));
                }
                Ok(Sample {
                    id: s.id,
                    index: s.id,
                    source: SourceId(source as u16),
                    offset,
                    len: s.len,
                    issued_ns,
                    has_options,
                })
            };
        all.iter().enumerate().map(sample).collect()
    }

    fn options_len(&self, of: &Sources, source: usize, at: usize, len: u32) -> Option<usize> {
        if !self.config.model.answers_tokens() {
            return None;
        }
        // SAFETY: the program writes no sample that it issues, as the header says.
        let request = unsafe { of.regions[source].bytes(at, len as usize) }.ok()?;
        RequestOptions::block_len(request).map(usize::from)
    }

    fn up<T>(
        &self,
        with: impl FnOnce(&Cluster, &Sources) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        match &*self.stage() {
            Stage::Up(up) => with(&up.0, &up.1),
            Stage::Open(_) | Stage::Connecting => Err(Failure::state("call qdl_connect before")),
            Stage::Finished(_) => Err(Failure::state("the run has ended: qdl_finish was called")),
        }
    }

    /// Issues samples, all or none.
    pub fn issue(&self, samples: &[qdl_sample]) -> Result<(), Failure> {
        self.up(|cluster, sources| {
            cluster.dispatcher().issue(&self.samples(sources, samples)?);
            Ok(())
        })
    }

    /// Cancels samples.
    pub fn cancel(&self, ids: &[u64]) -> Result<(), Failure> {
        self.up(|cluster, _| {
            ids.iter().for_each(|id| cluster.dispatcher().cancel(*id));
            Ok(())
        })
    }

    /// Aborts the run.
    pub fn abort(&self, why: &str) -> Result<(), Failure> {
        self.up(|cluster, _| {
            cluster.abort(why);
            Ok(())
        })
    }

    /// The SUT's name.
    pub fn name(&self) -> Result<String, Failure> {
        self.up(|cluster, _| cluster.name().map_err(Failure::system))
            .map(|(name, _)| name)
    }

    /// Counts so far, as JSON.
    pub fn counters(&self) -> Result<String, Failure> {
        self.up(|cluster, _| {
            let (ledger, [up, lost]) = cluster.figures();
            let outstanding = cluster.dispatcher().outstanding();
            let connections = json!({"up": up, "lost": lost});
            Ok(json!({"ledger": ledger, "outstanding": outstanding, "connections": connections}))
        })
        .map(|counters| counters.to_string())
    }

    /// The record of the run, as JSON.
    pub fn record(&self) -> Result<String, Failure> {
        match &*self.stage() {
            Stage::Finished(record) => Ok(record.clone()),
            _ => Err(Failure::state("the record is there after qdl_finish")),
        }
    }

    /// Waits for samples in flight, for at most the deadline `drain`, and ends the run. A second
    /// call has no effect.
    pub fn finish(&self) -> Result<(), Failure> {
        let is_up = matches!(*self.stage(), Stage::Up(_));
        if is_up && let Stage::Up(up) = self.set(Stage::Finished("{}".to_owned())) {
            let record = up.0.finish();
            let record = serde_json::to_string(&record).map_err(Failure::system)?;
            self.set(Stage::Finished(record));
        }
        self.events.bell().close();
        Ok(())
    }

    /// Longest wait of one poll.
    pub const MOST: Duration = Duration::from_secs(3600);
}
