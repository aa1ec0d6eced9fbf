//! How long a connection takes to be made.

use std::{
    net::{SocketAddr, TcpListener, TcpStream},
    time::{Duration, Instant},
};

const COUNT: usize = 3000;

/// Accepts and closes, on a thread of its own in this network namespace.
pub(crate) fn listen(address: &str) -> anyhow::Result<std::thread::JoinHandle<()>> {
    let listener = TcpListener::bind(address)?;
    Ok(std::thread::spawn(move || listener.incoming().for_each(drop)))
}

/// The median over many connections.
pub(crate) fn p50(to: &str) -> anyhow::Result<Duration> {
    let to: SocketAddr = to.parse()?;
    let mut times = Vec::with_capacity(COUNT);
    for i in 0..COUNT + 200 {
        let started = Instant::now();
        let stream = TcpStream::connect_timeout(&to, Duration::from_secs(5))?;
        let took = started.elapsed();
        drop(stream);
        if i >= 200 {
            times.push(took);
        }
    }
    times.sort();
    Ok(times[COUNT / 2])
}
