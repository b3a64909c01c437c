//! What to turn: of a cause's advice, what fits the run's scenario and is not set so already.

use super::{
    judge::View,
    limits::{Cause, Finding},
    rules::OFTEN,
};

/// Advice that is left, or that there is none.
fn any_of(parts: &[(bool, &str)], none: &str) -> String {
    let fits: Vec<_> = parts.iter().filter(|p| p.0).map(|p| p.1).collect();
    match fits[..] {
        [] => none.to_owned(),
        _ => fits.join(", "),
    }
}

impl View<'_> {
    /// A finding with the advice that fits.
    pub(super) fn found(&self, cause: Cause, figure: String) -> Option<Finding> {
        let turn = self.turn(cause);
        Some(Finding {
            cause,
            figure,
            turn,
        })
    }

    /// Whether a setting of LoadGen's is on.
    fn is_on(&self, name: &str) -> bool {
        let mut all = self.run.settings.iter().filter(|s| s.name == name);
        all.any(|s| s.given.value == "true")
    }

    /// Every entry of `nics` on this node has this value; false where there is none.
    fn all_nics(&self, key: &str, is: impl Fn(&str) -> bool) -> bool {
        let key = format!("].{key}");
        let all = self.run.settings.iter();
        let mut all = all
            .filter(|s| s.name.starts_with("nics[") && s.name.ends_with(&key))
            .peekable();
        all.peek().is_some() && all.all(|s| is(&s.given.value))
    }

    fn is_local(&self) -> bool {
        self.run.fabric == "local"
    }

    fn turn(&self, cause: Cause) -> String {
        let pinned = self.all_nics("cpus", |cores| cores != "any");
        let local = self.is_local();
        let spins = !self.all_nics("completion.mode", |mode| mode == "event");
        match cause {
            Cause::Link => any_of(
                &[
                    (
                        true,
                        "a faster line, another entry of `nics`, more accelerators",
                    ),
                    (self.server, "a lower rate"),
                ],
                "",
            ),
            Cause::Engine if local => "there is no network here to turn anything of".to_owned(),
            Cause::Engine if self.run.scenario == "SingleStream" => {
                "a faster accelerator; `--local` shows the same without a network".to_owned()
            }
            Cause::Engine => {
                "more accelerators; `--local` shows the same without a network".to_owned()
            }
            Cause::Rate => {
                let coalesced = self.is_on("server_coalesce_queries");
                any_of(
                    &[
                        (true, "a lower `target_qps`"),
                        (!coalesced, "`server_coalesce_queries`"),
                        (true, "more `server_num_issue_query_threads`"),
                    ],
                    "",
                )
            }
            Cause::IssueThread => {
                let leave = "leave it a core of its own: ";
                let how = any_of(
                    &[
                        (!local && !pinned, "`nics[].cpus`"),
                        (!local && spins, "fewer spinning threads"),
                        (true, "nothing else on the machine"),
                    ],
                    "",
                );
                format!("{leave}{how}")
            }
            Cause::Cores => any_of(
                &[
                    (
                        !local && spins,
                        "fewer programs and spinning threads on the machine",
                    ),
                    (local || !spins, "fewer programs on the machine"),
                    (!local && !pinned, "pin with `cpus`"),
                    (!local, "a machine of its own for the frontend"),
                    (local, "fewer `engine.threads`"),
                ],
                "",
            ),
            Cause::NicThread => {
                let more = "another entry of `nics` (one thread each) with `cpus` of its own";
                let copies = self.run.fabric == "tcp";
                any_of(&[(true, more), (copies, "`ib`, which does not copy")], "")
            }
            Cause::WakeUps => self.turn_of_wake_ups(),
            Cause::Posting => {
                let none = self.all_nics("post_from_issue_thread_up_to", |bytes| bytes == "0");
                match none {
                    true => "another entry of `nics`: NIC threads post all samples already",
                    false => {
                        "lower `post_from_issue_thread_up_to`, so that NIC threads share the \
                         copying"
                    }
                }
                .to_owned()
            }
            Cause::Completion => {
                let coalesced = self.is_on("server_coalesce_queries");
                any_of(
                    &[
                        (self.is_on("enable_trace"), "turn `enable_trace` off"),
                        (self.server && !coalesced, "`server_coalesce_queries`"),
                    ],
                    "nothing here: it is LoadGen's own work",
                )
            }
            _ => cause.row().turn.to_owned(),
        }
    }

    /// Where threads sleep, they may spin longer.
    fn turn_of_wake_ups(&self) -> String {
        let (here, there) = self.sleeps();
        let place = match (here >= OFTEN, there >= OFTEN) {
            (true, true) => "here and on the accelerators",
            (true, false) => "on this node",
            (false, _) => "on the accelerators",
        };
        // An event mode has nothing that could be raised.
        let event = here >= OFTEN && self.all_nics("completion.mode", |mode| mode == "event");
        match event {
            true => format!(
                "`completion.mode: adaptive` in place of `event` {place}, or `poll` with a core to \
                 spare for each NIC thread (`cpus`)"
            ),
            false => format!(
                "raise `completion.spin_us` {place}, or `mode: poll` with a core to spare for each \
                 NIC thread (`cpus`)"
            ),
        }
    }
}
