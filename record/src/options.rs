//! Options of a request that an engine may act on.

use std::{collections::BTreeSet, fmt};

use serde::{Deserialize, Serialize};

/// One option of a request. Its number is the kind of its field on the wire; the token limit has a
/// place of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestOption {
    /// Most tokens of the answer.
    TokenLimit = 0,
    /// Fewest tokens of the answer.
    MinTokens = 1,
    /// Temperature of sampling above 0. Every engine takes 0, which is greedy.
    Temperature = 2,
    /// Probability of the tokens that sampling chooses from.
    TopP = 3,
    /// Number of the tokens that sampling chooses from.
    TopK = 4,
    /// Seed of sampling.
    Seed = 5,
    /// The answer goes on behind the end of sequence.
    IgnoreEos = 6,
    /// Ids that end the answer.
    StopIds = 7,
    /// Handle of the prompt's KV cache on a prefill node.
    Handle = 8,
}

impl RequestOption {
    /// Every option, by its number.
    pub const ALL: [RequestOption; 9] = [
        RequestOption::TokenLimit,
        RequestOption::MinTokens,
        RequestOption::Temperature,
        RequestOption::TopP,
        RequestOption::TopK,
        RequestOption::Seed,
        RequestOption::IgnoreEos,
        RequestOption::StopIds,
        RequestOption::Handle,
    ];

    /// Name of the option, as on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            RequestOption::TokenLimit => "token_limit",
            RequestOption::MinTokens => "min_tokens",
            RequestOption::Temperature => "temperature",
            RequestOption::TopP => "top_p",
            RequestOption::TopK => "top_k",
            RequestOption::Seed => "seed",
            RequestOption::IgnoreEos => "ignore_eos",
            RequestOption::StopIds => "stop_ids",
            RequestOption::Handle => "handle",
        }
    }
}

/// A set of options.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "BTreeSet<RequestOption>", into = "BTreeSet<RequestOption>")]
pub struct OptionSet(u16);

impl OptionSet {
    /// No option.
    pub const NONE: OptionSet = OptionSet(0);
    /// Every option.
    pub const ALL: OptionSet = OptionSet::of(&RequestOption::ALL);
    /// Every option that a client may ask for.
    pub const OF_CLIENTS: OptionSet =
        OptionSet::ALL.without(OptionSet::of(&[RequestOption::Handle]));

    /// The set of these options.
    pub const fn of(options: &[RequestOption]) -> OptionSet {
        let (mut bits, mut i) = (0, 0);
        while i < options.len() {
            bits |= 1 << options[i] as u16;
            i += 1;
        }
        OptionSet(bits)
    }

    /// Whether the option is in the set.
    pub const fn has(self, option: RequestOption) -> bool {
        self.0 & (1 << option as u16) != 0
    }

    /// Options that are in either set.
    #[must_use]
    pub const fn or(self, other: OptionSet) -> OptionSet {
        OptionSet(self.0 | other.0)
    }

    /// Options that are in both sets.
    #[must_use]
    pub const fn and(self, other: OptionSet) -> OptionSet {
        OptionSet(self.0 & other.0)
    }

    /// Options of this set that `other` lacks.
    #[must_use]
    pub const fn without(self, other: OptionSet) -> OptionSet {
        OptionSet(self.0 & !other.0)
    }

    /// Whether the set has no option.
    pub const fn is_empty(&self) -> bool {
        self.0 == 0
    }

    /// The options of the set, in a fixed order.
    pub fn iter(self) -> impl Iterator<Item = RequestOption> {
        let all = RequestOption::ALL.into_iter();
        all.filter(move |option| self.has(*option))
    }
}

impl FromIterator<RequestOption> for OptionSet {
    fn from_iter<I: IntoIterator<Item = RequestOption>>(options: I) -> Self {
        let bits = options.into_iter().map(|option| 1 << option as u16);
        OptionSet(bits.fold(0, |all, bit| all | bit))
    }
}

impl From<BTreeSet<RequestOption>> for OptionSet {
    fn from(options: BTreeSet<RequestOption>) -> Self {
        options.into_iter().collect()
    }
}

impl From<OptionSet> for BTreeSet<RequestOption> {
    fn from(options: OptionSet) -> Self {
        options.iter().collect()
    }
}

impl fmt::Display for OptionSet {
    /// The names, separated by commas.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.iter().map(RequestOption::name).collect();
        f.write_str(&names.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_a_list_of_names_on_the_wire() {
        let all = OptionSet::ALL;
        let names: Vec<_> = RequestOption::ALL.iter().map(|o| o.name()).collect();
        let json = serde_json::to_value(all).expect("JSON");
        assert_eq!(json, serde_json::json!(names));
        assert_eq!(serde_json::from_value::<OptionSet>(json).ok(), Some(all));
        assert!(serde_json::from_str::<OptionSet>(r#"["beam"]"#).is_err());
        let seed = OptionSet::of(&[RequestOption::Seed]);
        let rest = all.without(seed);
        assert!(!rest.has(RequestOption::Seed) && rest.and(seed).is_empty());
        assert_eq!(seed.to_string(), "seed");
    }
}
