//! A guest's console: a file that QEMU appends to, watched for the agent's word that it is ready.

use std::fs::{self, File};
use std::path::PathBuf;

use anyhow::Result;

use crate::process::last_lines;

/// What a guest prints, boot after boot.
pub(crate) struct Console {
    path: PathBuf,
    /// Where the present boot begins.
    start: usize,
}

impl Console {
    /// The console of a guest of this name. What an earlier guest of the name printed is kept beside it.
    pub(crate) fn new(name: &str) -> Result<Console> {
        let paths = (1..).map(|number| match number {
            1 => PathBuf::from(format!("{name}.console")),
            _ => PathBuf::from(format!("{name}-{number}.console")),
        });
        let path = paths.into_iter().find(|path| !path.exists()).unwrap_or_default();
        File::create_new(&path)?;
        Ok(Console { path, start: 0 })
    }

    /// A boot begins.
    pub(crate) fn begin(&mut self) -> Result<()> {
        self.start = usize::try_from(fs::metadata(&self.path)?.len())?;
        Ok(())
    }

    /// What was printed since the boot began.
    pub(crate) fn text(&self) -> String {
        let bytes = fs::read(&self.path).unwrap_or_default();
        String::from_utf8_lossy(bytes.get(self.start..).unwrap_or_default()).into_owned()
    }

    /// Its last lines, for an error.
    pub(crate) fn last_words(&self) -> String {
        last_lines(&self.text(), 15)
    }

    pub(crate) fn path(&self) -> &PathBuf {
        &self.path
    }
}
