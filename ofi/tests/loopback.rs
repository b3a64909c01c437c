//! The safe layer on the system's libfabric, between two endpoints of this process.
//!
//! Without libfabric each test says so and passes.
#![allow(clippy::expect_used)]

use std::{
    ptr::NonNull,
    sync::Arc,
    time::{Duration, Instant},
};

use ofi::{
    Completion, Depths, Domain, Endpoint, Error, Memory, Mr, Ofi, Outcome, Place, Target, Write,
};

struct Bytes(NonNull<u8>, usize);

// SAFETY: leaked memory of the heap, which is written through addresses alone.
unsafe impl Memory for Bytes {
    fn addr(&self) -> NonNull<u8> {
        self.0
    }
    fn len(&self) -> usize {
        self.1
    }
}
// SAFETY: an address and a length.
unsafe impl Send for Bytes {}
// SAFETY: as above.
unsafe impl Sync for Bytes {}

impl Bytes {
    fn new(len: usize, fill: u8) -> Arc<Self> {
        let at = vec![fill; len].leak().as_mut_ptr();
        Arc::new(Bytes(NonNull::new(at).expect("memory"), len))
    }
    fn byte(&self, at: usize) -> u8 {
        assert!(at < self.1);
        // SAFETY: inside, and looked at only when nobody writes it, or as a glimpse.
        unsafe { self.0.add(at).read_volatile() }
    }
}

/// The library, or why there is none.
fn library() -> Option<Arc<Ofi>> {
    match Ofi::load() {
        Ok(ofi) => Some(ofi),
        Err(Error::NoLibrary { detail }) => {
            println!("skipped: no libfabric ({detail})");
            None
        }
        Err(e) => panic!("{e}"),
    }
}

fn loopback(provider: &str) -> Place {
    Place {
        address: Some("127.0.0.1".to_owned()),
        ..Place::of(provider)
    }
}

#[test]
fn what_is_not_there_is_named_with_what_is() {
    let Some(ofi) = library() else { return };
    let none = ofi
        .find(&Place::of("nosuch"))
        .expect_err("no such provider");
    assert!(matches!(none, Error::NoProvider { .. }), "{none}");
    println!("{none}");
    let place = Place {
        domain: Some("nosuch0".to_owned()),
        ..Place::of("tcp;ofi_rxm")
    };
    let none = ofi.find(&place).expect_err("no such domain").to_string();
    assert!(
        none.contains("domain nosuch0") && none.contains("lo"),
        "{none}"
    );
    println!("{none}");
    let place = Place {
        address: Some("203.0.113.77".to_owned()),
        ..Place::of("tcp;ofi_rxm")
    };
    let none = ofi.find(&place).expect_err("nobody's address").to_string();
    assert!(none.contains("address 203.0.113.77"), "{none}");
    println!("{none}");
    match ofi.find(&Place::of("efa")) {
        Ok(info) => println!("there is an EFA here: {info:?}"),
        Err(e) => println!("{e}"),
    }
}

struct End {
    endpoint: Endpoint,
    window: Arc<Bytes>,
    at: ofi::RemoteRegion,
}

fn end(domain: &Arc<Domain>, bytes: usize, key: u64) -> End {
    let source = Mr::source(domain, Bytes::new(bytes, 7), key).expect("a source");
    let depths = Depths {
        sends: 8,
        receives: 0,
        completions: 64,
    };
    let mut endpoint = Endpoint::open(domain, vec![source], depths).expect("an endpoint");
    let window = Bytes::new(bytes, 0xee);
    let at = endpoint.expose(window.clone(), key + 1).expect("a window");
    End {
        endpoint,
        window,
        at,
    }
}

fn pair(provider: &str, bytes: usize) -> Option<(End, End)> {
    let ofi = library()?;
    let info = match ofi.find(&loopback(provider)) {
        Ok(info) => info,
        Err(e @ Error::NoProvider { .. }) => {
            println!("skipped: {e}");
            return None;
        }
        Err(e) => panic!("{e}"),
    };
    let domain = Domain::open(&info).expect("opened");
    let (a, b) = (end(&domain, bytes, 0x1000), end(&domain, bytes, 0x2000));
    let addresses = [&a, &b].map(|e| e.endpoint.address().expect("an address"));
    a.endpoint.introduce(&addresses[1]).expect("introduced");
    b.endpoint.introduce(&addresses[0]).expect("introduced");
    assert!(a.endpoint.words(&addresses[1]).contains("127.0.0.1"));
    Some((a, b))
}

fn write(from: &End, to: &End, len: usize, data: Option<u64>) {
    let write = Write {
        send: 0,
        source: 0,
        offset: 0,
        len,
        target: Target {
            addr: to.at.addr,
            key: to.at.key,
        },
        data,
        delivered: false,
    };
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        match from.endpoint.write(&write) {
            Ok(()) => return,
            Err(e) if e.is_again() => {
                from.endpoint.poll(&mut |_| {}).expect("alive");
                to.endpoint.poll(&mut |_| {}).expect("alive");
            }
            Err(e) => panic!("{e}"),
        }
        assert!(Instant::now() < end, "no room for ever");
    }
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < end, "{what}");
    }
}

#[test]
fn a_write_arrives_with_its_data_and_retires() {
    let Some((a, b)) = pair("tcp;ofi_rxm", 1 << 16) else {
        return;
    };
    write(&a, &b, 1 << 16, None);
    until("the payload", || {
        let _ = a.endpoint.poll(&mut |_| {});
        let _ = b.endpoint.poll(&mut |_| {});
        b.window.byte((1 << 16) - 1) == 7
    });
    write(&a, &b, 0, Some(0x1234_5678_9abc_def0));
    let (mut sent, mut arrived) = (0, Vec::new());
    until("the data", || {
        let mut note = |c: Completion| match c.outcome {
            Outcome::Sent { .. } => sent += 1,
            Outcome::Arrived { data, .. } => arrived.push(data),
        };
        a.endpoint.poll(&mut note).expect("alive");
        b.endpoint.poll(&mut note).expect("alive");
        sent >= 1 && !arrived.is_empty()
    });
    assert_eq!(arrived, [0x1234_5678_9abc_def0]);
}

/// What the quarantine stands on: a write that has begun goes on after its region was closed, and
/// ends when the endpoint is.
#[test]
fn nothing_lands_once_the_endpoint_is_closed() {
    let bytes = 32 << 20;
    let Some((a, b)) = pair("tcp;ofi_rxm", bytes) else {
        return;
    };
    write(&a, &b, 1, None);
    until("the first byte", || {
        let _ = a.endpoint.poll(&mut |_| {});
        let _ = b.endpoint.poll(&mut |_| {});
        b.window.byte(0) == 7
    });
    write(&a, &b, bytes, None);
    until("it begins", || {
        let _ = a.endpoint.poll(&mut |_| {});
        let _ = b.endpoint.poll(&mut |_| {});
        b.window.byte(1 << 16) == 7
    });
    let End {
        endpoint, window, ..
    } = b;
    drop(endpoint);
    let landed = (0..bytes).take_while(|i| window.byte(*i) == 7).count();
    assert!(landed < bytes, "too late to see anything");
    let mut failed = None;
    until("the sender hears of it", || {
        failed = a.endpoint.poll(&mut |_| {}).err();
        failed.is_some()
    });
    println!(
        "{landed} of {bytes} bytes had landed; {}",
        failed.expect("seen")
    );
    let after = (0..bytes).take_while(|i| window.byte(*i) == 7).count();
    assert_eq!(after, landed, "more has landed");
}
