//! The journal's native protocol: one datagram per line, with fields. Standard error would lose the levels; the crate
//! for this would add a dependency for a socket of the standard library.

use std::{
    fmt::{self, Write as _},
    io::Write as _,
    os::unix::net::UnixDatagram,
};

use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::layer::{Context, Layer};

const SOCKET: &str = "/run/systemd/journal/socket";
/// The maximum size of a datagram, below the default limit of sockets; longer values are truncated.
const MAX_DATAGRAM_BYTES: usize = 64 * 1024;

/// The connection to the journal.
#[derive(Debug)]
pub(super) struct Journal(UnixDatagram);

impl Journal {
    /// `None` if standard error is not the journal's, or the journal cannot be reached.
    pub(super) fn connect() -> Option<Self> {
        let stream = std::env::var("JOURNAL_STREAM").ok()?;
        let stderr = nix::sys::stat::fstat(std::io::stderr()).ok()?;
        if stream != format!("{}:{}", stderr.st_dev, stderr.st_ino) {
            return None;
        }
        let socket = UnixDatagram::unbound().ok()?;
        socket.connect(SOCKET).ok()?;
        Some(Self(socket))
    }
}

impl<S: Subscriber> Layer<S> for Journal {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let datagram = encode(event.metadata(), &fields);
        if self.0.send(&datagram).is_err() {
            // The journal is down and reads standard error when it is back.
            let _ = writeln!(std::io::stderr(), "<{}>{}", priority(*event.metadata().level()), fields.message());
        }
    }
}

/// The message and fields of a line.
#[derive(Debug, Default)]
struct Fields {
    message: String,
    others: Vec<(&'static str, String)>,
}

impl Fields {
    /// The message with all fields: journalctl shows the message alone.
    fn message(&self) -> String {
        let mut text = self.message.clone();
        for (name, value) in &self.others {
            let _ = write!(text, "{}{name}={value}", if text.is_empty() { "" } else { " " });
        }
        text
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => value.clone_into(&mut self.message),
            name => self.others.push((name, value.to_owned())),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

/// The syslog priority.
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        // Debug lines have the last one; trace has none of its own.
        Level::INFO => 6,
        _ => 7,
    }
}

fn encode(metadata: &Metadata<'_>, fields: &Fields) -> Vec<u8> {
    let mut out = Vec::new();
    append_field(&mut out, "MESSAGE", &fields.message());
    append_field(&mut out, "PRIORITY", &priority(*metadata.level()).to_string());
    append_field(&mut out, "SYSLOG_IDENTIFIER", "windlass");
    append_field(&mut out, "TARGET", metadata.target());
    if let (Some(file), Some(line)) = (metadata.file(), metadata.line()) {
        append_field(&mut out, "CODE_FILE", file);
        append_field(&mut out, "CODE_LINE", &line.to_string());
    }
    for (name, value) in &fields.others {
        append_field(&mut out, &field_name(name), value);
    }
    out
}

/// Journal field names consist of capitals, digits and underscores and start with a capital.
fn field_name(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
    format!("F_{}", name.chars().map(plain).collect::<String>())
}

/// A multi-line value is preceded by its length.
fn append_field(out: &mut Vec<u8>, name: &str, value: &str) {
    let left = MAX_DATAGRAM_BYTES.saturating_sub(out.len() + name.len() + 16);
    let value = &value[..value.floor_char_boundary(left)];
    out.extend(name.as_bytes());
    if value.contains('\n') {
        out.push(b'\n');
        out.extend(u64::try_from(value.len()).unwrap_or_default().to_le_bytes());
    } else {
        out.push(b'=');
    }
    out.extend(value.as_bytes());
    out.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(name: &str, value: &str) -> Vec<u8> {
        let mut out = Vec::new();
        append_field(&mut out, name, value);
        out
    }

    #[test]
    fn how_values_are_written() {
        assert_eq!(field("MESSAGE", "a=b"), b"MESSAGE=a=b\n");
        assert_eq!(field("MESSAGE", "two\nlines"), b"MESSAGE\n\x09\0\0\0\0\0\0\0two\nlines\n");
        // A value cannot end its field and begin another.
        assert!(!field("F_X", "x\nPRIORITY=0").starts_with(b"F_X="));
        let long = "é".repeat(MAX_DATAGRAM_BYTES);
        let cut = field("MESSAGE", &long);
        assert!(cut.len() <= MAX_DATAGRAM_BYTES && std::str::from_utf8(&cut).is_ok());
    }

    #[test]
    fn names_are_the_journals() {
        for (name, wanted) in [("pod", "F_POD"), ("otel.name", "F_OTEL_NAME"), ("_x9", "F__X9")] {
            assert_eq!(field_name(name), wanted);
        }
    }

    #[test]
    fn the_message_tells_the_fields_too() {
        let others = vec![("pod", "web".to_owned()), ("seconds", "3".to_owned())];
        assert_eq!(Fields { message: "it ended".into(), others }.message(), "it ended pod=web seconds=3");
    }

    #[test]
    fn levels_are_syslogs() {
        let all = [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG, Level::TRACE];
        assert_eq!(all.map(priority), [3, 4, 6, 7, 7]);
    }
}
