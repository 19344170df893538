//! A disk that is small enough to be filled up.

use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, bail, ensure};
use nix::unistd::geteuid;
use tempfile::TempDir;

/// What is written at a time until nothing more goes in.
const PIECE: usize = 256 * 1024;

/// A file system in memory, mounted for one world. Unmounted when it is dropped.
pub struct SmallDisk {
    folder: TempDir,
    mounted: bool,
}

impl SmallDisk {
    /// Whether whoever runs this may mount one.
    pub fn is_allowed() -> bool {
        geteuid().is_root() && Self::mount(1).and_then(Self::unmount).is_ok()
    }

    /// Mounts one of so many MiB.
    ///
    /// # Errors
    /// When that isn't allowed here.
    pub(super) fn mount(mib: u32) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("fluxbuy-disk-").tempdir()?;
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={mib}m,mode=755"), "tmpfs"])
            .arg(folder.path())
            .output()
            .context("mount could not be started")?;
        ensure!(
            mount.status.success(),
            "a small disk can be mounted only by root: {}",
            String::from_utf8_lossy(&mount.stderr)
        );
        // The database's unprivileged user has to get through.
        Ok(Self {
            folder,
            mounted: true,
        })
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Fills it up to the last byte.
    ///
    /// # Errors
    /// When something else stands in the way.
    pub fn fill(&self) -> anyhow::Result<()> {
        let mut ballast = File::options().create(true).append(true).open(self.ballast())?;
        let mut piece = &vec![0_u8; PIECE][..];
        while !piece.is_empty() {
            match ballast.write(piece) {
                Ok(0) => piece = &piece[..piece.len() / 2],
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::StorageFull => piece = &piece[..piece.len() / 2],
                Err(error) => bail!("the disk could not be filled: {error}"),
            }
        }
        Ok(())
    }

    /// Gives the room back.
    ///
    /// # Errors
    /// When it can't be removed.
    pub fn relieve(&self) -> anyhow::Result<()> {
        fs::remove_file(self.ballast()).context("the ballast could not be removed")
    }

    fn ballast(&self) -> std::path::PathBuf {
        self.folder.path().join("ballast")
    }

    /// Takes it away.
    ///
    /// # Errors
    /// When somebody still uses it.
    pub(super) fn unmount(mut self) -> anyhow::Result<()> {
        self.mounted = false;
        unmount(self.folder.path())
    }
}

fn unmount(path: &Path) -> anyhow::Result<()> {
    let done = Command::new("umount").arg(path).status()?;
    ensure!(done.success(), "{} could not be unmounted", path.display());
    Ok(())
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        if self.mounted
            && let Err(error) = unmount(self.folder.path())
        {
            eprintln!("stress: {error:#}");
        }
    }
}
