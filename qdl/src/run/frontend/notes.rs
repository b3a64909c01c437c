//! Why the Network division would not permit a run's fabric. Its rules require that frontend and
//! accelerators are separate machines, connected by Ethernet, IEEE 802.11, InfiniBand or 3GPP.

use record::{LOOPBACK_NOTE, LinkFact, LinkLayer, NodeFacts};

/// Why the Network division would not accept the links of a run, one line each; empty where it
/// would. `own` are this
/// node's facts, `peers` the accelerators' names and facts.
pub(crate) fn links(own: &NodeFacts, peers: &[(String, NodeFacts)]) -> Vec<String> {
    let loopback = |l: &LinkFact| l.layer == LinkLayer::Loopback;
    let all_loopback = !own.links.is_empty() && own.links.iter().all(loopback);
    let mut notes = Vec::new();
    if all_loopback {
        notes.push(LOOPBACK_NOTE.to_owned());
    } else {
        notes.extend(own.links.iter().filter_map(|l| of_link("", l)));
    }
    for (node, facts) in peers {
        let links = facts
            .links
            .iter()
            .filter(|l| !(all_loopback && loopback(l)));
        notes.extend(links.filter_map(|l| of_link(&format!("{node} "), l)));
    }
    notes
}

/// Why the Network division would not accept the machines of a run, one line each.
pub(crate) fn machines(own: &NodeFacts, peers: &[(String, NodeFacts)]) -> Vec<String> {
    let mut notes = Vec::new();
    let of = |wanted: Option<bool>| {
        let them = peers.iter().filter(|(_, f)| own.same_machine(f) == wanted);
        them.map(|(node, _)| node.as_str()).collect::<Vec<_>>()
    };
    let (here, unknown) = (of(Some(true)), of(None));
    if let Some(all) = listed(&here) {
        let are = if here.len() == 1 { "is" } else { "are" };
        let host = match own.host.as_str() {
            "" => String::new(),
            host => format!(" ({host})"),
        };
        notes.push(format!(
            "{all} {are} on this very machine{host}: one machine is no network (not permitted)"
        ));
    }
    if let Some(all) = listed(&unknown) {
        notes.push(format!(
            "whether {all} and this node are separate machines cannot be told: a boot-id is missing"
        ));
    }
    notes
}

/// Reason why the Network division would not permit a link of `node`, if any.
fn of_link(node: &str, link: &LinkFact) -> Option<String> {
    let LinkFact { nic, name, layer } = link;
    let what = match layer {
        l if l.is_permitted() => return None,
        LinkLayer::Loopback => "loopback (not a permitted fabric)".to_owned(),
        LinkLayer::Virtual => format!("{layer}: what carries it is not known to be permitted"),
        _ => format!("{layer}: it is not known to be permitted"),
    };
    Some(format!("{node}nics[{nic}] ({name}) is {what}"))
}

/// Joins names: `a`, `a and b`, `a, b and c`.
fn listed(names: &[&str]) -> Option<String> {
    let (last, others) = names.split_last()?;
    Some(match others {
        [] => (*last).to_owned(),
        _ => format!("{} and {last}", others.join(", ")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notes(own: &NodeFacts, peers: &[(String, NodeFacts)]) -> Vec<String> {
        [links(own, peers), machines(own, peers)].concat()
    }

    fn node(host: &str, boot: &str, links: &[(&str, LinkLayer)]) -> NodeFacts {
        let links = links.iter().zip(0u16..);
        NodeFacts {
            host: host.to_owned(),
            boot: (!boot.is_empty()).then(|| boot.to_owned()),
            links: links
                .map(|((name, layer), nic)| LinkFact {
                    nic,
                    name: (*name).to_owned(),
                    layer: *layer,
                })
                .collect(),
            ..NodeFacts::default()
        }
    }

    fn peer(name: &str, facts: NodeFacts) -> (String, NodeFacts) {
        (name.to_owned(), facts)
    }

    #[test]
    fn what_counts_has_no_notes() {
        let own = node("f", "1", &[("eth0", LinkLayer::Ethernet)]);
        let there = node("a", "2", &[("ib0", LinkLayer::InfiniBand)]);
        assert_eq!(notes(&own, &[peer("a", there)]), [""; 0]);
    }

    #[test]
    fn loopback_and_one_machine_are_said_whatever_the_address() {
        let own = node("box", "1", &[("lo", LinkLayer::Loopback)]);
        let there = node("box", "1", &[("lo", LinkLayer::Loopback)]);
        let both = notes(&own, &[peer("a", there.clone()), peer("b", there)]);
        assert_eq!(
            both,
            [
                LOOPBACK_NOTE,
                "a and b are on this very machine (box): one machine is no network (not permitted)"
            ]
        );
        let own = node("box", "1", &[("eth0", LinkLayer::Ethernet)]);
        let pod = node("pod", "1", &[("eth0", LinkLayer::Virtual)]);
        let found = notes(&own, &[peer("a", pod), peer("b", node("far", "2", &[]))]);
        assert_eq!(
            found,
            [
                "a nics[0] (eth0) is a virtual interface: what carries it is not known to be \
                 permitted",
                "a is on this very machine (box): one machine is no network (not permitted)"
            ]
        );
    }

    #[test]
    fn what_cannot_be_told_is_said_too() {
        let links = [("lo", LinkLayer::Loopback), ("x0", LinkLayer::Unknown)];
        let own = node("f", "1", &links);
        let found = notes(&own, &[peer("a", node("a", "", &[]))]);
        assert_eq!(
            found,
            [
                "nics[0] (lo) is loopback (not a permitted fabric)",
                "nics[1] (x0) is a link layer that is not known: it is not known to be permitted",
                "whether a and this node are separate machines cannot be told: a boot-id is missing"
            ]
        );
    }
}
