//! The journal's own protocol: one datagram for a line, with its fields. Standard error would give the journal a text
//! without levels; the crate for this would bring a package for what a socket of the standard library does.

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
/// A datagram's most, well below what sockets take by default; longer values are cut.
const LONGEST: usize = 64 * 1024;

/// Where lines go when systemd reads standard error.
#[derive(Debug)]
pub(super) struct Journal(UnixDatagram);

impl Journal {
    /// `None` where standard error is not the journal's, or the journal cannot be reached.
    pub(super) fn find() -> Option<Self> {
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
            // The journal is away: it reads standard error again when it is back.
            let _ = writeln!(std::io::stderr(), "<{}>{}", priority(*event.metadata().level()), fields.message());
        }
    }
}

/// A line's parts.
#[derive(Debug, Default)]
struct Fields {
    message: String,
    others: Vec<(&'static str, String)>,
}

impl Fields {
    /// All of it: who reads the journal sees the message alone.
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

/// syslog's.
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
    put(&mut out, "MESSAGE", &fields.message());
    put(&mut out, "PRIORITY", &priority(*metadata.level()).to_string());
    put(&mut out, "SYSLOG_IDENTIFIER", "windlass");
    put(&mut out, "TARGET", metadata.target());
    if let (Some(file), Some(line)) = (metadata.file(), metadata.line()) {
        put(&mut out, "CODE_FILE", file);
        put(&mut out, "CODE_LINE", &line.to_string());
    }
    for (name, value) in &fields.others {
        put(&mut out, &field_name(name), value);
    }
    out
}

/// Names have capitals, digits and underscores, and do not begin with either of the last.
fn field_name(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
    format!("F_{}", name.chars().map(plain).collect::<String>())
}

/// A value of more than one line stands behind its length.
fn put(out: &mut Vec<u8>, name: &str, value: &str) {
    let left = LONGEST.saturating_sub(out.len() + name.len() + 16);
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

    fn put_alone(name: &str, value: &str) -> Vec<u8> {
        let mut out = Vec::new();
        put(&mut out, name, value);
        out
    }

    #[test]
    fn how_values_are_written() {
        assert_eq!(put_alone("MESSAGE", "a=b"), b"MESSAGE=a=b\n");
        assert_eq!(put_alone("MESSAGE", "two\nlines"), b"MESSAGE\n\x09\0\0\0\0\0\0\0two\nlines\n");
        // A value cannot end its field and begin another.
        assert!(!put_alone("F_X", "x\nPRIORITY=0").starts_with(b"F_X="));
        let long = "é".repeat(LONGEST);
        let cut = put_alone("MESSAGE", &long);
        assert!(cut.len() <= LONGEST && std::str::from_utf8(&cut).is_ok());
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
