//! Launches recorded once and replayed, with the device's own clock.

use cudarc::driver::{result, sys};
use forerun_backend_cuda::driver::{Driver, Gpu};
use std::error::Error;
use std::ptr;

/// Microseconds of what `record` queues, the median of `runs` replays.
pub(crate) fn time(
    gpu: &mut Gpu,
    runs: usize,
    record: impl FnOnce(&mut Gpu) -> Result<(), Box<dyn Error>>,
) -> Result<f64, Box<dyn Error>> {
    gpu.synchronize()?;
    let stream = gpu.stream() as sys::CUstream;
    let why = |error: result::DriverError| format!("{error:?}");
    // SAFETY: the stream is the driver's, whose context is current on this thread; handles are used as they were made.
    unsafe {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        result::stream::begin_capture(stream, mode).map_err(why)?;
        let recorded = record(gpu);
        let graph = result::stream::end_capture(stream).map_err(why)?;
        recorded?;
        let mut ready = ptr::null_mut();
        sys::cuGraphInstantiateWithFlags(&mut ready, graph, 0).result().map_err(why)?;
        let flags = sys::CUevent_flags::CU_EVENT_DEFAULT;
        let [start, end] = [result::event::create(flags), result::event::create(flags)];
        let (start, end) = (start.map_err(why)?, end.map_err(why)?);
        let mut times = Vec::new();
        for run in 0..runs + 2 {
            result::event::record(start, stream).map_err(why)?;
            result::graph::launch(ready, stream).map_err(why)?;
            result::event::record(end, stream).map_err(why)?;
            result::event::synchronize(end).map_err(why)?;
            let ms = result::event::elapsed(start, end).map_err(why)?;
            if run >= 2 {
                times.push(f64::from(ms) * 1e3);
            }
        }
        times.sort_by(f64::total_cmp);
        result::graph::exec_destroy(ready).map_err(why)?;
        result::graph::destroy(graph).map_err(why)?;
        result::event::destroy(start).map_err(why)?;
        result::event::destroy(end).map_err(why)?;
        Ok(times[times.len() / 2])
    }
}
