//! Machines: leases, operations, the fence.
