//! Faults: a peer that continues to write, cut sockets, ends that do not fit.

use std::{
    os::fd::{FromRawFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use fabric::testkit::assert_has;
use fabric::wire::Stream;
use fabric::{
    Armed, Control, Endpoint, Event, Grants, Imm, Post, Region, Window,
    ofi::{OfiCfgs, OfiConnection, OfiEnd},
};

use super::{
    late::{a_late_writer, here},
    rig::{INLINE_BYTES, Provider, endpoint, eventually, next, next_broken, post},
};

const RXM: Provider = Provider::new("tcp;ofi_rxm");

#[test]
fn nothing_of_a_peer_that_was_given_up_lands_over_rxm() {
    a_late_writer(RXM, 32 << 20, 1);
}

#[test]
fn nothing_of_a_peer_that_was_given_up_lands_over_net() {
    a_late_writer(Provider::new("net"), 32 << 20, 1);
}

fn sockets_to(port: u16) -> Vec<i32> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd")
        .expect("this is Linux")
        .flatten()
    {
        let fd: i32 = entry.file_name().to_string_lossy().parse().unwrap_or(-1);
        let mut address = std::mem::MaybeUninit::<libc::sockaddr_in>::zeroed();
        let mut len = size_of::<libc::sockaddr_in>() as libc::socklen_t;
        // SAFETY: the call writes at most `len` bytes, the size of `address`.
        let code = unsafe { libc::getpeername(fd, address.as_mut_ptr().cast(), &raw mut len) };
        // SAFETY: zeroes are a valid address, and the call may have overwritten them.
        let address = unsafe { address.assume_init() };
        let inet = i32::from(address.sin_family) == libc::AF_INET;
        if code == 0 && inet && u16::from_be(address.sin_port) == port {
            found.push(fd);
        }
    }
    found
}

/// Shuts down every socket to `port`; other tests of this process use other ports.
fn cut(port: u16) {
    let sockets = sockets_to(port);
    assert!(!sockets.is_empty(), "nothing is connected to port {port}");
    for fd in sockets {
        // SAFETY: the descriptor is open and belongs to the provider. This closes only a duplicate;
        // the provider's descriptor stays open.
        unsafe {
            let copy = OwnedFd::from_raw_fd(libc::dup(fd));
            libc::shutdown(std::os::fd::AsRawFd::as_raw_fd(&copy), libc::SHUT_RDWR);
        }
    }
}

/// A provider's silent reconnect must not hide lost writes: the sender of the next write detects
/// the loss, or the receiver of the next echo.
#[test]
fn a_socket_that_is_cut_breaks_the_connection_and_is_not_made_again_in_silence() {
    let Some(provider) = here(RXM) else { return };
    let pair = provider.open();
    let (a, b) = (endpoint(64, 4096, 64), endpoint(64, 4096, 64));
    let (ha, hb) = (pair.prepare(0, &a), pair.prepare(1, &b));
    let (ea, eb) = (ha.end().clone(), hb.end().clone());
    let mut lb = hb.accept(&ea).expect("accepted");
    let mut la = super::rig::warm(ha.dial(&eb).expect("introduced"), &mut lb);
    // The address is a `sockaddr_in`: the port follows the family.
    let port = u16::from_str_radix(&eb.address[4..8], 16).expect("a port");
    for slot in 0..64 {
        b.window.grants().open(slot).expect("closed");
    }
    la.tx.post(&post(0, 100, Imm::new(0, 1))).expect("room");
    la.tx.flush().expect("alive");
    let event = next(&mut lb, &mut la);
    assert!(
        matches!(event, Event::Arrived { len: 100, .. }),
        "{event:?}"
    );
    cut(port);
    let mut arrived = 0;
    let mut broken = None;
    let mut slot = 1;
    eventually("neither end hears of it", || {
        let writes = la.tx.posted();
        if slot < 64 && la.tx.post(&post(0, 100, Imm::new(slot, 1))).is_ok() {
            slot += 1;
        }
        let _ = la.tx.post(&Post::control(Control::Echo(1)));
        let _ = la.tx.flush();
        for link in [&mut la, &mut lb] {
            link.rx.poll(8, &mut |e| match e {
                Event::Broken(b) => broken = Some(b),
                Event::Arrived { .. } => arrived += 1,
                Event::Control(_) => {}
            });
        }
        assert!(writes < 200, "it goes on as if nothing had been");
        broken.is_some()
    });
    let broken = broken.expect("just seen").to_string();
    println!("{arrived} arrived after the cut; {broken}");
    assert!(broken.contains("tcp;ofi_rxm"), "{broken}");
}

/// An echo carries the number of writes before it, which reveals a lost one.
#[test]
fn a_write_that_was_lost_is_found_out_by_the_next_echo() {
    let Some(provider) = here(Provider::new("net")) else {
        return;
    };
    let pair = provider.open();
    let (a, b) = (endpoint(4, 128, 8), endpoint(4, 128, 8));
    // Prepares both ends with the same provider.
    let (ha, hb) = (pair.prepare(0, &a), pair.prepare(1, &b));
    let (ea, eb) = (ha.end().clone(), hb.end().clone());
    let mut lb = hb.accept(&ea).expect("accepted");
    let mut la = super::rig::warm(ha.dial(&eb).expect("introduced"), &mut lb);
    b.window.grants().open(0).expect("closed");
    la.tx.post(&post(0, 8, Imm::new(0, 1))).expect("room");
    la.tx.flush().expect("alive");
    let first = next(&mut lb, &mut la);
    assert!(matches!(first, Event::Arrived { .. }), "{first:?}");
    la.tx.post(&Post::control(Control::Echo(3))).expect("room");
    la.tx.flush().expect("alive");
    assert_eq!(next(&mut lb, &mut la), Event::Control(Control::Echo(3)));
    // A sender that claims more writes than it posted stands for one with lost writes.
    let claimed = Imm::from_bits(1 << 31 | 3 << 28 | 2);
    let lie = Post {
        imm: claimed,
        ..Post::control(Control::Echo(0))
    };
    la.tx.post(&lie).expect("room");
    la.tx.flush().expect("alive");
    let broken = next_broken(&mut lb, &mut la).to_string();
    assert!(broken.contains("posted 2, and 1 arrived"), "{broken}");
}

/// A layer over sockets accepts new sockets only every 10 ms, and reports work until then. The
/// polling thread must sleep nevertheless.
#[test]
fn an_incoming_socket_lets_the_polling_thread_sleep() {
    let Some(provider) = here(RXM) else { return };
    let pair = provider.open();
    let e = endpoint(4, 64, 8);
    let (a, b) = (pair.prepare(0, &e), pair.prepare(1, &e));
    let (ea, eb) = (a.end().clone(), b.end().clone());
    let mut lb = b.accept(&ea).expect("accepted");
    let mut dialling = a.dial(&eb).expect("introduced");
    let mut awake = 0;
    eventually("nothing crosses", || {
        lb.rx.poll(1, &mut |e| panic!("{e:?}"));
        match lb.rx.arm() {
            Armed::Ready => awake += 1,
            Armed::Sleep => std::thread::sleep(Duration::from_millis(1)),
        }
        dialling.step().expect("on its way")
    });
    // Useful wake-ups: the message, its answer, and the answer's completion.
    assert!(awake < 20, "{awake} looks without a sleep");
}

fn refused(what: &str, change: impl Fn(&mut OfiEnd)) {
    let Some(provider) = here(RXM) else { return };
    let pair = provider.open();
    let e = endpoint(4, 64, 8);
    let (a, b) = (pair.prepare(0, &e), pair.prepare(1, &e));
    let mut end = b.end().clone();
    change(&mut end);
    let text = a.dial(&end).expect_err("refused").to_string();
    assert!(text.contains(what) && !text.contains('\n'), "{text}");
    println!("{text}");
}

#[test]
fn an_end_that_does_not_fit_is_refused_by_its_field() {
    refused("provider is efa", |e| e.provider = "efa".to_owned());
    refused("form is cell", |e| e.form = fabric::ofi::OfiForm::Cell);
    refused("address is ", |e| e.address = "xyz".to_owned());
    refused("slots.length is 255", |e| e.slots.length = 255);
    refused("slots.length is", |e| e.slots.address = u64::MAX);
}

#[test]
fn a_peer_that_never_answers_is_named_when_it_is_too_late() {
    let Some(provider) = here(RXM) else { return };
    let pair = provider.open();
    let e = endpoint(4, 64, 8);
    let a = pair.prepare(0, &e);
    // This end is prepared and dropped at once.
    let end = pair.prepare(1, &e).end().clone();
    let mut dialling = a.dial(&end).expect("introduced");
    let mut text = None;
    for _ in 0..300 {
        match dialling.step() {
            Ok(crossed) => assert!(!crossed, "no peer is there"),
            Err(e) => {
                text = Some(e.to_string());
                break;
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let late = || dialling.too_late(Duration::from_millis(300)).to_string();
    let text = text.unwrap_or_else(late);
    assert_has(&text, &["no message has crossed to", "127.0.0.1"]);
    println!("{text}");
}

#[test]
fn parts_without_order_are_refused_by_key() {
    let Some(provider) = here(Provider::shuffled("tcp;ofi_rxm", 1)) else {
        return;
    };
    let device = provider.device().expect("the provider");
    let grants = Arc::new(Grants::new(1));
    let region = Arc::new(Region::new(64).expect("memory"));
    let window = Window::new(region, 0, 64, grants)
        .expect("fits")
        .in_parts(Stream::First);
    let e = Endpoint {
        window,
        ..endpoint(1, 64, 8)
    };
    let text = OfiCfgs::resolve(&device, &e, INLINE_BYTES)
        .expect_err("refused")
        .to_string();
    assert!(text.contains("stream: none"), "{text}");
    println!("{text}");
}

/// `shm` crashes its process: it reads the memory of a peer that has closed its endpoint.
#[test]
fn a_provider_that_cannot_be_trusted_is_refused_in_words() {
    if here(RXM).is_none() {
        return;
    }
    let keys = fabric::ofi::OfiKeys {
        provider: "shm".to_owned(),
        domain: Some("shm".to_owned()),
        ..Default::default()
    };
    let refused = fabric::ofi::OfiDevice::open(&keys, &fabric::os::Near::default());
    let text = refused.expect_err("refused").to_string();
    assert!(
        text.contains("shm:shm: ofi: ") && !text.contains('\n'),
        "{text}"
    );
}

#[test]
fn a_connection_that_never_came_up_leaves_nothing_behind() {
    let Some(provider) = here(RXM) else { return };
    let pair = provider.open();
    let e = endpoint(4, 64, 8);
    let (a, b) = (pair.prepare(0, &e), pair.prepare(1, &e));
    let end = b.end().clone();
    drop(a.dial(&end).expect("introduced"));
    drop(b.accept(&end).expect("accepted"));
    let cfgs = OfiCfgs::resolve(pair.resources[0].device(), &e, INLINE_BYTES).expect("fits");
    let c = OfiConnection::prepare(&pair.resources[0], e.clone(), &cfgs).expect("prepared");
    drop(c);
    assert_eq!(
        Arc::strong_count(e.window.region()),
        1,
        "no object keeps it"
    );
}
