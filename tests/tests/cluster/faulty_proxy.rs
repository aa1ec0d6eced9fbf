//! A TCP proxy in front of the API server with its own port, like a load balancer or a second server, with fault
//! injection.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use windlass_tests::{
    Dice, Testbed,
    cluster::{ADDRESS, PORT},
};

/// A connection breaks off after at most this many bytes of answers: never within a handshake, always within a list or
/// a watch.
const BREAKS_AFTER: std::ops::Range<usize> = 8 << 10..128 << 10;

/// A proxy in front of the API server. It exists until the test's process ends.
pub(crate) struct FaultyProxy {
    silent: Arc<AtomicBool>,
}

impl FaultyProxy {
    /// Forwards connections to this port of the outside namespace; the server's responses are delayed, whatever their
    /// length.
    pub(crate) fn start(testbed: &Testbed, port: u16, hold: Duration) -> Self {
        Self::serve(testbed, port, hold, None)
    }

    /// Each connection breaks off somewhere in its answers, which the server has given: a request is lost before or after it
    /// is carried out, a list in its middle, a watch within an event.
    pub(crate) fn breaking_off(testbed: &Testbed, port: u16, dice: Dice) -> Self {
        Self::serve(testbed, port, Duration::ZERO, Some(dice))
    }

    fn serve(testbed: &Testbed, port: u16, hold: Duration, mut dice: Option<Dice>) -> Self {
        let silent = Arc::new(AtomicBool::new(false));
        let namespace = std::fs::File::open(testbed.outside()).expect("a namespace");
        let (ready, is_ready) = std::sync::mpsc::channel();
        let stop_forwarding = Arc::clone(&silent);
        thread::spawn(move || {
            // Only for this thread; new threads inherit it.
            nix::sched::setns(namespace, nix::sched::CloneFlags::CLONE_NEWNET).expect("root may enter a namespace");
            let listener = TcpListener::bind((ADDRESS, port)).expect("the port is free");
            ready.send(()).expect("somebody waits");
            for client in listener.incoming() {
                let (Ok(client), Ok(server)) = (client, TcpStream::connect((ADDRESS, PORT))) else { continue };
                let (Ok(client_out), Ok(server_in)) = (client.try_clone(), server.try_clone()) else { continue };
                let (one, other) = (Arc::clone(&stop_forwarding), Arc::clone(&stop_forwarding));
                let breaks_after = dice.as_mut().map(|dice| BREAKS_AFTER.start + dice.index(BREAKS_AFTER.len()));
                thread::spawn(move || forward(client, server, Duration::ZERO, None, &one));
                thread::spawn(move || forward(server_in, client_out, hold, breaks_after, &other));
            }
        });
        is_ready.recv().expect("the front listens");
        Self { silent }
    }

    /// Stops forwarding: connections are accepted and stay open, without responses.
    pub(crate) fn stop_forwarding(&self) {
        self.silent.store(true, Ordering::SeqCst);
    }
}

fn forward(mut from: TcpStream, mut to: TcpStream, hold: Duration, breaks_after: Option<usize>, silent: &AtomicBool) {
    let (source, mut left) = (from.try_clone(), breaks_after.unwrap_or(usize::MAX));
    let (send, receive) = std::sync::mpsc::channel::<(Instant, Vec<u8>)>();
    thread::spawn(move || {
        let mut chunk = vec![0; 65536];
        while let Ok(read @ 1..) = from.read(&mut chunk) {
            if send.send((Instant::now() + hold, chunk[..read].to_vec())).is_err() {
                break;
            }
        }
    });
    for (due, chunk) in receive {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        if silent.load(Ordering::SeqCst) {
            continue;
        }
        let part = chunk.len().min(left);
        left -= part;
        if to.write_all(&chunk[..part]).is_err() || left == 0 {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    // The other end hears of it, too, as of a load balancer that ends.
    let _ = source.map(|source| source.shutdown(Shutdown::Both));
}
