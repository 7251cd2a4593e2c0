//! What the system says of the machine: memory, a container's limits, graphics adapters and their drivers.

use forerun_devices::{ContainerLimits, MemorySizes};
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};

/// The machine. It holds nothing that tells whose it is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Host {
    /// `linux`, `macos`, `windows`.
    pub system: &'static str,
    /// Its version, if it tells.
    pub release: Option<String>,
    /// Main memory.
    pub memory: MemorySizes,
    /// What a container may use.
    pub container: ContainerLimits,
    /// Graphics adapters on the bus, with or without a driver (Linux).
    pub graphics: Vec<GraphicsAdapter>,
    /// Version of the kernel's NVIDIA driver, where it is loaded.
    pub nvidia_driver: Option<String>,
}

/// A graphics adapter on the PCI bus.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GraphicsAdapter {
    /// The maker, where it is known.
    pub vendor: &'static str,
    /// Vendor and device as numbers.
    pub id: String,
    /// The kernel's driver for it; null where none is bound.
    pub driver: Option<String>,
}

impl Host {
    /// Asks the system.
    pub fn read() -> Self {
        Self::under(Path::new("/"))
    }

    /// The same, with another root folder.
    fn under(root: &Path) -> Self {
        let container = ContainerLimits::under(root);
        Self {
            system: std::env::consts::OS,
            release: line(&root.join("proc/sys/kernel/osrelease")),
            memory: MemorySizes::under(root, &container),
            container,
            graphics: graphics(root),
            nvidia_driver: line(&root.join("proc/driver/nvidia/version")),
        }
    }
}

/// The first line of a file.
fn line(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    text.lines().next().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty())
}

/// Adapters of the class of displays, by the system's list of the PCI bus.
fn graphics(root: &Path) -> Vec<GraphicsAdapter> {
    let Ok(devices) = fs::read_dir(root.join("sys/bus/pci/devices")) else { return Vec::new() };
    let mut folders: Vec<PathBuf> = devices.flatten().map(|entry| entry.path()).collect();
    folders.sort();
    folders.iter().filter_map(|folder| adapter(folder)).collect()
}

fn adapter(folder: &Path) -> Option<GraphicsAdapter> {
    let hex = |name: &str| line(&folder.join(name))?.strip_prefix("0x").map(str::to_owned);
    // Class 03 is displays and 3D controllers, 12 are processing accelerators.
    hex("class").filter(|class| class.starts_with("03") || class.starts_with("12"))?;
    let (vendor, device) = (hex("vendor")?, hex("device")?);
    let driver = fs::read_link(folder.join("driver")).ok();
    Some(GraphicsAdapter {
        vendor: match vendor.as_str() {
            "10de" => "NVIDIA",
            "1002" => "AMD",
            "8086" => "Intel",
            "1af4" => "virtio",
            _ => "unknown",
        },
        id: format!("{vendor}:{device}"),
        driver: driver.and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine as Linux describes it.
    struct Described(tempfile::TempDir);

    impl Described {
        fn new(files: &[(&str, &str)]) -> Self {
            let folder = tempfile::tempdir().unwrap();
            for (file, text) in files {
                let file = folder.path().join(file);
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(file, format!("{text}\n")).unwrap();
            }
            Self(folder)
        }

        fn host(&self) -> Host {
            Host::under(self.0.path())
        }
    }

    #[test]
    fn a_gpu_without_a_driver_is_listed_and_other_devices_are_not() {
        let pci = "sys/bus/pci/devices";
        let host = Described::new(&[
            (&format!("{pci}/0000:01:00.0/class"), "0x030200"),
            (&format!("{pci}/0000:01:00.0/vendor"), "0x10de"),
            (&format!("{pci}/0000:01:00.0/device"), "0x2335"),
            (&format!("{pci}/0000:02:00.0/class"), "0x020000"),
            (&format!("{pci}/0000:02:00.0/vendor"), "0x8086"),
            (&format!("{pci}/0000:02:00.0/device"), "0x1572"),
            ("proc/driver/nvidia/version", "NVRM version: NVIDIA 580.1"),
        ])
        .host();
        let adapter =
            GraphicsAdapter { vendor: "NVIDIA", id: "10de:2335".to_owned(), driver: None };
        assert_eq!(host.graphics, [adapter]);
        assert_eq!(host.nvidia_driver.as_deref(), Some("NVRM version: NVIDIA 580.1"));
    }

    #[test]
    fn a_system_that_tells_nothing_is_described_by_nothing() {
        let host = Described::new(&[]).host();
        assert_eq!((host.memory, host.graphics), (MemorySizes::default(), Vec::new()));
    }
}
