//! Network: `/proc/PID/net/dev` and `/proc/net/route`.

use super::{lines, number, words};
use crate::model::{Interface, InterfaceName};

/// Whether an interface only repeats what others carry: loopback, Docker's bridges, host ends of containers' pairs.
pub(crate) fn is_inner(name: &[u8]) -> bool {
    let pod_pair = name.len() == 13
        && name.strip_prefix(b"wl").is_some_and(|rest| rest.iter().all(|byte| byte.is_ascii_hexdigit()));
    pod_pair || [&b"lo"[..], b"veth", b"docker", b"nerdctl", b"br-"].iter().any(|prefix| name.starts_with(prefix))
}

/// Interfaces in file order, inner ones left out. A bad row is skipped; it does not spoil the others.
pub(crate) fn devices(text: &[u8], out: &mut Vec<Interface>) {
    out.extend(lines(text).filter_map(device));
}

fn device(line: &[u8]) -> Option<Interface> {
    let colon = line.iter().position(|byte| *byte == b':')?;
    let (name, numbers) = line.split_at(colon);
    let name = name.trim_ascii();
    if is_inner(name) {
        return None;
    }
    let mut columns = [0_u64; 16];
    let mut words = words(numbers.get(1..)?);
    for column in &mut columns {
        *column = number(words.next()?)?;
    }
    let [rx_bytes, rx_packets, rx_errors, rx_dropped, _, _, _, _, tx_bytes, tx_packets, tx_errors, tx_dropped, ..] =
        columns;
    Some(Interface {
        name: InterfaceName::new(name)?,
        rx_bytes,
        rx_packets,
        rx_errors,
        rx_dropped,
        tx_bytes,
        tx_packets,
        tx_errors,
        tx_dropped,
    })
}

/// The interface of the first default route in `/proc/net/route`.
pub(crate) fn default_interface(text: &[u8]) -> Option<InterfaceName> {
    lines(text).skip(1).find_map(|line| {
        let mut words = words(line);
        let name = words.next()?;
        (words.next() == Some(b"00000000")).then(|| InterfaceName::new(name)).flatten()
    })
}
