//! Opening files that somebody else put there.

use std::fs::{File, Metadata};
use std::io::{Error, ErrorKind, Read, Result};
use std::path::Path;

/// Opens a regular file for reading. Anything else of that name is refused: a FIFO would be waited for without end, and
/// a device may never run dry.
pub fn open_regular(path: impl AsRef<Path>) -> Result<File> {
    let path = path.as_ref();
    // Asked first, because opening a FIFO already waits for who writes to it.
    check(&path.metadata()?)?;
    let file = File::open(path)?;
    check(&file.metadata()?)?;
    Ok(file)
}

/// Reads a regular file whole.
pub fn read_regular(path: impl AsRef<Path>) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads a regular file of text whole.
pub fn read_regular_text(path: impl AsRef<Path>) -> Result<String> {
    let mut text = String::new();
    open_regular(path)?.read_to_string(&mut text)?;
    Ok(text)
}

fn check(found: &Metadata) -> Result<()> {
    if found.is_file() {
        return Ok(());
    }
    if found.is_dir() {
        return Err(Error::new(ErrorKind::IsADirectory, "not a regular file but a directory"));
    }
    Err(Error::new(ErrorKind::InvalidInput, "not a regular file but a FIFO, a socket or a device"))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_are_opened() {
        let folder = std::env::temp_dir().join(format!("forerun-base-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let (fifo, socket, link) =
            (folder.join("fifo"), folder.join("socket"), folder.join("link"));
        let made = std::process::Command::new("mkfifo").arg(&fifo).status().expect("mkfifo");
        assert!(made.success());
        let _listener = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
        std::os::unix::fs::symlink(&fifo, &link).expect("a link");
        std::fs::write(folder.join("file"), "text").expect("a file");
        for other in [&fifo, &socket, &link, &folder, Path::new("/dev/zero")] {
            let error = read_regular(other).expect_err("refused");
            assert!(
                error.to_string().contains("not a regular file"),
                "{}: {error}",
                other.display()
            );
        }
        assert_eq!(read_regular_text(folder.join("file")).expect("text"), "text");
        let missing = open_regular(folder.join("none")).expect_err("missing");
        assert_eq!(missing.kind(), ErrorKind::NotFound);
        std::fs::remove_dir_all(&folder).expect("removed");
    }
}
