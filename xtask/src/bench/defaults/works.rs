//! What is measured: rows of work that a user of the library has, and the keys that a user sets.

/// How queries come, and what counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The highest rate that LoadGen calls valid with 10 ms at the 99th percentile.
    Server,
    /// Samples a second.
    Offline,
}

/// One row.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    pub kind: Kind,
    /// Entries of `nics` on either side.
    pub rails: usize,
    /// Connections of each, where that is said.
    pub connections: Option<usize>,
    /// Bytes of a sample.
    pub bytes: usize,
}

impl Work {
    /// `server-64B-2`, `server-64B-1x1`.
    pub fn name(&self) -> String {
        let kind = match self.kind {
            Kind::Server => "server",
            Kind::Offline => "offline",
        };
        let each = self.connections.map(|n| format!("x{n}"));
        let each = each.unwrap_or_default();
        format!("{kind}-{}B-{}{each}", self.bytes, self.rails)
    }
}

const fn work(kind: Kind, bytes: usize, rails: usize, connections: Option<usize>) -> Work {
    Work {
        kind,
        rails,
        connections,
        bytes,
    }
}

/// All rows.
pub const WORKS: &[Work] = &[
    work(Kind::Server, 64, 1, Some(1)),
    work(Kind::Server, 64, 1, None),
    work(Kind::Server, 64, 2, None),
    work(Kind::Server, 64, 4, None),
    work(Kind::Offline, 64, 1, None),
    work(Kind::Offline, 4_608, 1, None),
    work(Kind::Offline, 150_528, 1, None),
    work(Kind::Offline, 150_528, 2, None),
    work(Kind::Offline, 150_528, 4, None),
    work(Kind::Offline, 150_528, 8, None),
];

/// Settings made by hand: YAML for the places where a user would write it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// What was set, as it is printed: `slots: 64`.
    pub said: Vec<&'static str>,
    /// Keys of each of a frontend's `nics`.
    pub frontend_nic: Vec<&'static str>,
    /// Keys of each of an accelerator's `nics`.
    pub accelerator_nic: Vec<&'static str>,
    /// Keys of a frontend's file.
    pub frontend: Vec<&'static str>,
    /// Keys of an accelerator's file.
    pub accelerator: Vec<&'static str>,
    /// Instead of the row's number of connections.
    pub connections: Option<usize>,
}

/// One key and value to try.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// As it is written in YAML.
    pub yaml: &'static str,
    place: Place,
    /// Rows of one kind alone.
    pub only: Option<Kind>,
}

#[derive(Clone, Copy, Debug)]
enum Place {
    /// `nics` of the frontend.
    Frontend,
    /// `nics` of both.
    Both,
    /// The frontend's file.
    Top,
    /// The files of both.
    BothTop,
    /// A number of connections.
    Connections(usize),
}

const fn key(yaml: &'static str, place: Place, only: Option<Kind>) -> Key {
    Key { yaml, place, only }
}

/// What is tried by hand.
pub const KEYS: &[Key] = &[
    key(
        "post_from_issue_thread_up_to: 0",
        Place::Frontend,
        Some(Kind::Server),
    ),
    key(
        "post_from_issue_thread_up_to: 1048576",
        Place::Frontend,
        Some(Kind::Offline),
    ),
    key("doorbell_wait_us: 0", Place::Top, Some(Kind::Server)),
    key("doorbell_wait_us: 50", Place::Top, Some(Kind::Server)),
    key("doorbell_wait_us: 500", Place::Top, Some(Kind::Server)),
    key("slots: 4", Place::Frontend, Some(Kind::Offline)),
    key("slots: 8", Place::Frontend, Some(Kind::Offline)),
    key("slots: 16", Place::Frontend, Some(Kind::Offline)),
    key("slots: 32", Place::Frontend, Some(Kind::Offline)),
    key("slots: 64", Place::Frontend, None),
    key("slots: 128", Place::Frontend, Some(Kind::Offline)),
    key("slots: 1024", Place::Frontend, None),
    key("completion: {mode: poll}", Place::Both, None),
    key("completion: {mode: event}", Place::Both, None),
    key("completion: {spin_us: 500}", Place::Both, None),
    key("completion: {spin_us: 5}", Place::Both, None),
    key("completion: {yield_after_us: never}", Place::Both, None),
    key("nic_threads: 1", Place::BothTop, None),
    key("connections: 1", Place::Connections(1), None),
    key("connections: 2", Place::Connections(2), None),
    key("connections: 4", Place::Connections(4), None),
    key("connections: 8", Place::Connections(8), None),
];

impl Settings {
    /// These, and one key more; `None` where the key is set already.
    pub fn with(&self, key: &Key) -> Option<Settings> {
        let name = |yaml: &str| yaml.split(':').next().unwrap_or_default().to_owned();
        if self.said.iter().any(|s| name(s) == name(key.yaml)) {
            return None;
        }
        let mut more = self.clone();
        more.said.push(key.yaml);
        match key.place {
            Place::Frontend => more.frontend_nic.push(key.yaml),
            Place::Both => {
                more.frontend_nic.push(key.yaml);
                more.accelerator_nic.push(key.yaml);
            }
            Place::Top => more.frontend.push(key.yaml),
            Place::BothTop => {
                more.frontend.push(key.yaml);
                more.accelerator.push(key.yaml);
            }
            Place::Connections(n) => more.connections = Some(n),
        }
        Some(more)
    }

    /// What was set, in one line.
    pub fn line(&self) -> String {
        if self.said.is_empty() {
            return "nothing".to_owned();
        }
        self.said.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_set_once_and_where_it_belongs() {
        let key = |yaml: &str| KEYS.iter().find(|k| k.yaml == yaml).expect("a key");
        let none = Settings::default();
        let slots = none.with(key("slots: 64")).expect("free");
        assert_eq!(slots.with(key("slots: 16")), None);
        let both = slots.with(key("completion: {mode: poll}")).expect("free");
        assert_eq!(both.frontend_nic, ["slots: 64", "completion: {mode: poll}"]);
        assert_eq!(both.accelerator_nic, ["completion: {mode: poll}"]);
        assert_eq!(both.line(), "slots: 64, completion: {mode: poll}");
        let one = none.with(key("nic_threads: 1")).expect("free");
        assert_eq!((&one.frontend, &one.accelerator), (&one.said, &one.said));
        assert_eq!(none.line(), "nothing");
    }
}
