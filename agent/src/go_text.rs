//! Errors of the operating system in the words of Go, which users and alerts know from upstream's events and statuses:
//! `connection refused`, not `Connection refused (os error 111)`. Pure.

use std::io;

/// The text of an error that ends in an event or a status.
pub(crate) fn go_text(error: &io::Error) -> String {
    match (error.kind(), error.raw_os_error()) {
        (io::ErrorKind::UnexpectedEof, None) => "EOF".to_owned(),
        (_, None) => error.to_string(),
        (_, Some(code)) => {
            let text = error.to_string();
            let text = text.strip_suffix(&format!(" (os error {code})")).unwrap_or(&text);
            // Go's table is that of the C library, with small letters at the start.
            let mut letters = text.chars();
            letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_go() {
        for (code, text) in [
            (nix::libc::ECONNREFUSED, "connection refused"),
            (nix::libc::EHOSTUNREACH, "no route to host"),
            (nix::libc::ECONNRESET, "connection reset by peer"),
            (nix::libc::ENOENT, "no such file or directory"),
            (nix::libc::EIO, "input/output error"),
        ] {
            assert_eq!(go_text(&io::Error::from_raw_os_error(code)), text);
        }
        assert_eq!(go_text(&io::ErrorKind::UnexpectedEof.into()), "EOF");
        assert_eq!(go_text(&io::Error::other("as it is")), "as it is");
    }
}
