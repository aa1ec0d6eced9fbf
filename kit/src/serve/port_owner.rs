//! Finds the process that listens on a TCP port, for the error that the port is in use.

use std::fs;

/// `; process 12 (nginx) holds it`, for the process that listens on `port`.
pub(super) fn of(port: u16) -> Option<String> {
    let inodes: Vec<String> = ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .filter_map(|table| fs::read_to_string(table).ok())
        .flat_map(|text| listeners(&text, port))
        .collect();
    for entry in fs::read_dir("/proc").ok()?.flatten() {
        let pid = entry.file_name().to_string_lossy().into_owned();
        if !pid.bytes().all(|b| b.is_ascii_digit()) {
            continue;
        }
        let holds = fs::read_dir(entry.path().join("fd")).into_iter().flatten().flatten().any(|fd| {
            fs::read_link(fd.path()).is_ok_and(|link| {
                let link = link.to_string_lossy();
                inodes.iter().any(|inode| link == format!("socket:[{inode}]"))
            })
        });
        if holds {
            let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            return Some(format!("; process {pid} ({}) holds it: end it, or choose another address", name.trim()));
        }
    }
    None
}

/// The inodes of sockets that listen on `port`, from a table of `/proc/net`.
fn listeners(table: &str, port: u16) -> Vec<String> {
    const LISTEN: &str = "0A";
    let wanted = format!("{port:04X}");
    table
        .lines()
        .skip(1)
        .filter_map(|line| {
            let columns: Vec<&str> = line.split_whitespace().collect();
            let (_, local_port) = columns.get(1)?.rsplit_once(':')?;
            (local_port == wanted && *columns.get(3)? == LISTEN).then(|| columns.get(9).map(|i| (*i).to_owned()))?
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_of_a_port_is_found() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let said = of(listener.local_addr().unwrap().port()).unwrap();
        assert!(said.contains(&format!("process {} (", std::process::id())), "{said}");
    }

    #[test]
    fn only_listening_sockets_count() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
                       0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 111 1\n\
                       1: 0100007F:1F90 0100007F:8888 01 00000000:00000000 00:00000000 00000000     0        0 222 1\n";
        assert_eq!(listeners(table, 8080), ["111"]);
        assert!(listeners(table, 80).is_empty());
    }
}
