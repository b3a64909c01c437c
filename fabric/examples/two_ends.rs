//! Two ends of one connection over TCP: one write, without a copy by this program.
//!
//! `cargo run -p fabric --example two_ends`

use std::{
    error::Error,
    net::{TcpListener, TcpStream},
    sync::Arc,
};

use fabric::{
    Endpoint, Event, Grants, Imm, Post, Region, SourceId, Window,
    tcp::{TcpKeys, link},
    wire::Stream,
};

/// One end: four slots of 64 bytes that the peer writes, and a source of 64 bytes.
fn end() -> Result<Endpoint, Box<dyn Error>> {
    let slots = Arc::new(Region::new(4 * 64)?);
    Ok(Endpoint {
        window: Window::new(slots, 0, 64, Arc::new(Grants::new(4)))?,
        sources: vec![Arc::new(Region::new(64)?)],
        peer_slots: 4,
        peer_stride: 64,
        peer_stream: Stream::None,
        send_depth: 16,
    })
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    let (far, _) = listener.accept()?;
    let (sender, receiver) = (end()?, end()?);
    let mut from = link(near, sender.clone(), &TcpKeys::default())?;
    let mut to = link(far, receiver.clone(), &TcpKeys::default())?;

    // The receiver grants its slot 2 for one write. Real ends agree on the use count in advance.
    let slot = 2;
    let r#use = receiver
        .window
        .grants()
        .open(slot)
        .ok_or("slot 2 is free")?;
    // SAFETY: no write reads the source yet.
    unsafe { sender.sources[0].store(0, b"hello")? };
    from.tx.post(&Post {
        source: SourceId(0),
        offset: 0,
        len: 5,
        at: 0,
        imm: Imm::new(slot, r#use),
    })?;
    from.tx.flush()?;

    let mut arrived = false;
    while !arrived {
        to.rx.poll(16, &mut |event| {
            println!("{event:?}");
            arrived |= !matches!(event, Event::Control(_));
        });
    }
    // SAFETY: the write has arrived, so the receiver owns the slot until it grants it again.
    let bytes = unsafe {
        receiver
            .window
            .region()
            .bytes(receiver.window.slot_offset(slot), 5)?
    };
    println!("slot {slot}: {}", String::from_utf8_lossy(bytes));
    Ok(())
}
