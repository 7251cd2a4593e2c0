//! Commands in order: collected, then handed to the adapter as one pass for each submission.

use crate::kernels::operand_of;
use crate::launch::Launch;
use forerun_backend::{BackendError, Ticket};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Words in which kernels note a bad index.
const FAULT_BYTES: u64 = 16;

/// Something to do, in the order in which it was asked for.
enum Command {
    Launch(Launch),
    Copy { from: wgpu::Buffer, to: wgpu::Buffer, at: u64 },
}

/// What the adapter reported outside of calls.
#[derive(Clone, Default)]
struct Reported(Arc<Mutex<Option<String>>>);

impl Reported {
    fn note(&self, what: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(what);
    }

    fn take(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Work that was handed over.
struct Submission {
    ticket: Ticket,
    index: wgpu::SubmissionIndex,
    /// What kernels noted, once it is done.
    noted: wgpu::Buffer,
    began: Instant,
}

/// See the module's text.
pub(crate) struct Queue {
    pub(crate) device: wgpu::Device,
    queue: wgpu::Queue,
    pub(crate) fault: wgpu::Buffer,
    commands: Vec<Command>,
    began: Option<Instant>,
    submitted: Vec<Submission>,
    spare: Vec<wgpu::Buffer>,
    last: u64,
    done: Instant,
    errors: Reported,
    lost: Reported,
}

impl Queue {
    pub(crate) fn new(device: wgpu::Device, queue: wgpu::Queue) -> Self {
        let (errors, lost) = (Reported::default(), Reported::default());
        let noted = errors.clone();
        device
            .on_uncaptured_error(Arc::new(move |error: wgpu::Error| noted.note(error.to_string())));
        let noted = lost.clone();
        device.set_device_lost_callback(move |reason, why| {
            noted.note(format!("the device was lost ({reason:?}): {why}"));
        });
        let fault = device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("bad indices"),
            size: FAULT_BYTES,
            usage: wgpu::BufferUsages::STORAGE
                | wgpu::BufferUsages::COPY_SRC
                | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        Self {
            device,
            queue,
            fault,
            commands: Vec::new(),
            began: None,
            submitted: Vec::new(),
            spare: Vec::new(),
            last: 0,
            done: Instant::now(),
            errors,
            lost,
        }
    }

    /// A buffer, or what there was no memory for.
    pub(crate) fn buffer(
        &self,
        label: &str,
        bytes: u64,
        usage: wgpu::BufferUsages,
    ) -> Result<wgpu::Buffer, BackendError> {
        let none = || BackendError::OutOfMemory { label: label.to_owned(), bytes: bytes as usize };
        let limits = self.device.limits();
        let most = limits.max_buffer_size.min(limits.max_storage_buffer_binding_size);
        if bytes > most {
            return Err(BackendError::Device(format!(
                "`{label}` has {bytes} bytes, a buffer of this adapter at most {most}; ask for a smaller context or fewer sequences"
            )));
        }
        let memory = self.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let buffer = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some(label),
            size: bytes.next_multiple_of(4).max(4),
            usage,
            mapped_at_creation: false,
        });
        match pollster::block_on(memory.pop()) {
            Some(_) => Err(none()),
            None => self.check().map(|()| buffer),
        }
    }

    /// A buffer that kernels use and bytes are copied into and out of.
    pub(crate) fn storage(&self, label: &str, bytes: u64) -> Result<wgpu::Buffer, BackendError> {
        let usage = wgpu::BufferUsages::STORAGE
            | wgpu::BufferUsages::COPY_SRC
            | wgpu::BufferUsages::COPY_DST;
        self.buffer(label, bytes, usage)
    }

    /// What the adapter reported since it was last asked.
    fn check(&self) -> Result<(), BackendError> {
        if let Some(lost) = self.lost.take() {
            // It stays lost.
            self.lost.note(lost.clone());
            return Err(BackendError::Device(lost));
        }
        self.errors.take().map_or(Ok(()), |error| Err(BackendError::Device(error)))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    pub(crate) fn push(&mut self, launch: Launch) {
        self.began.get_or_insert_with(Instant::now);
        self.commands.push(Command::Launch(launch));
    }

    /// Bytes into a buffer; place and length are multiples of four.
    pub(crate) fn write(
        &mut self,
        to: &wgpu::Buffer,
        at: u64,
        bytes: &[u8],
    ) -> Result<(), BackendError> {
        self.began.get_or_insert_with(Instant::now);
        if self.commands.is_empty() {
            self.queue.write_buffer(to, at, bytes);
            return Ok(());
        }
        // What is queued comes first, so these bytes wait their turn in a buffer of their own.
        let from = self.staged(bytes)?;
        self.commands.push(Command::Copy { from, to: to.clone(), at });
        Ok(())
    }

    /// A buffer that holds bytes.
    pub(crate) fn staged(&self, bytes: &[u8]) -> Result<wgpu::Buffer, BackendError> {
        let usage = wgpu::BufferUsages::STORAGE
            | wgpu::BufferUsages::COPY_SRC
            | wgpu::BufferUsages::COPY_DST;
        let buffer = self.buffer("bytes from the host", bytes.len() as u64, usage)?;
        self.queue.write_buffer(&buffer, 0, bytes);
        Ok(buffer)
    }

    /// Hands over what was written so far, so that copies of it do not pile up in memory.
    pub(crate) fn flush_writes(&self) -> Result<(), BackendError> {
        self.queue.submit([]);
        self.poll(None)
    }

    fn poll(&self, index: Option<wgpu::SubmissionIndex>) -> Result<(), BackendError> {
        let wait = wgpu::PollType::Wait { submission_index: index, timeout: None };
        self.device.poll(wait).map_err(|why| BackendError::Device(why.to_string()))?;
        self.check()
    }

    /// All commands in one command buffer, launches that follow each other in one pass.
    fn encode(&mut self, encoder: &mut wgpu::CommandEncoder) {
        let mut commands = self.commands.drain(..).peekable();
        while let Some(command) = commands.next() {
            match command {
                Command::Copy { from, to, at } => {
                    encoder.copy_buffer_to_buffer(&from, 0, &to, at, from.size());
                }
                Command::Launch(first) => {
                    let descriptor = wgpu::ComputePassDescriptor::default();
                    let mut pass = encoder.begin_compute_pass(&descriptor);
                    let mut next = Some(first);
                    while let Some(launch) = next {
                        pass.set_pipeline(&launch.pipeline);
                        pass.set_bind_group(0, &launch.group, &[]);
                        pass.set_immediates(0, &launch.immediates);
                        let [x, y, z] = launch.grid;
                        pass.dispatch_workgroups(x, y, z);
                        let more = commands.next_if(|c| matches!(c, Command::Launch(_)));
                        next = match more {
                            Some(Command::Launch(launch)) => Some(launch),
                            _ => None,
                        };
                    }
                }
            }
        }
    }

    pub(crate) fn submit(&mut self) -> Result<Ticket, BackendError> {
        let noted = match self.spare.pop() {
            Some(noted) => noted,
            None => {
                let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
                self.buffer("bad indices, read back", FAULT_BYTES, usage)?
            }
        };
        let mut encoder = self.device.create_command_encoder(&Default::default());
        self.encode(&mut encoder);
        encoder.copy_buffer_to_buffer(&self.fault, 0, &noted, 0, FAULT_BYTES);
        encoder.clear_buffer(&self.fault, 0, None);
        let index = self.queue.submit([encoder.finish()]);
        noted.slice(..).map_async(wgpu::MapMode::Read, |_| {});
        self.last += 1;
        let ticket = Ticket(self.last);
        let began = self.began.take().unwrap_or_else(Instant::now);
        self.submitted.push(Submission { ticket, index, noted, began });
        self.check().map(|()| ticket)
    }

    /// The time is the host's, from the first command of a submission, or the end of the one before, to its end: at least what
    /// the device was busy. What kernels noted until then is the error, once.
    pub(crate) fn wait(&mut self, ticket: Ticket) -> Result<Duration, BackendError> {
        let passed = self.submitted.partition_point(|submission| submission.ticket <= ticket);
        let Some(last) = self.submitted[..passed].last() else {
            return self.check().map(|()| Duration::ZERO);
        };
        let polled = self.poll(Some(last.index.clone()));
        let mut error = None;
        let mut began = None;
        for submission in self.submitted.drain(..passed) {
            began.get_or_insert(submission.began);
            if polled.is_err() {
                continue;
            }
            match submission.noted.slice(..).get_mapped_range() {
                Ok(bytes) => error = error.or_else(|| noted(&bytes)),
                Err(why) => error = error.or(Some(BackendError::Device(why.to_string()))),
            }
            submission.noted.unmap();
            self.spare.push(submission.noted);
        }
        let now = Instant::now();
        let began = began.unwrap_or(now).max(self.done);
        self.done = now;
        polled?;
        error.map_or(Ok(now - began), Err)
    }

    /// Bytes of a buffer; place and length are multiples of four.
    pub(crate) fn read(
        &mut self,
        from: &wgpu::Buffer,
        at: u64,
        len: u64,
    ) -> Result<Vec<u8>, BackendError> {
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        let to = self.buffer("bytes for the host", len, usage)?;
        let mut encoder = self.device.create_command_encoder(&Default::default());
        encoder.copy_buffer_to_buffer(from, at, &to, 0, len);
        let index = self.queue.submit([encoder.finish()]);
        to.slice(..).map_async(wgpu::MapMode::Read, |_| {});
        self.poll(Some(index))?;
        let bytes = to.slice(..len).get_mapped_range();
        let bytes = bytes.map_err(|why| BackendError::Device(why.to_string()))?.to_vec();
        to.unmap();
        Ok(bytes)
    }
}

/// What kernels noted, as an error.
fn noted(bytes: &[u8]) -> Option<BackendError> {
    let (words, _) = bytes.as_chunks::<4>();
    let [site, index, limit] = [0, 1, 2].map(|i| u32::from_le_bytes(words[i]));
    let (op, operand) = operand_of(site);
    let (index, limit) = (index as usize, limit as usize);
    (site != 0).then_some(BackendError::Index { op, operand, index, limit })
}
