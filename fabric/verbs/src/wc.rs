//! Work completions: the entries of a completion queue.

use crate::raw;

/// One entry of a completion queue, as [`Cq::poll`](crate::Cq::poll) returns it.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Wc(raw::ibv_wc);

impl Wc {
    /// The `wr_id` of the completed work request.
    pub fn wr_id(&self) -> u64 {
        self.0.wr_id
    }

    /// Whether the work request succeeded. If it failed, only [`Wc::wr_id`], [`Wc::qp_num`],
    /// [`Wc::status`] and [`Wc::vendor_err`] are valid.
    pub fn is_success(&self) -> bool {
        self.0.status == raw::IBV_WC_SUCCESS
    }

    /// Whether the work request was flushed: the queue pair was in ERR.
    pub fn is_flushed(&self) -> bool {
        self.0.status == raw::IBV_WC_WR_FLUSH_ERR
    }

    /// The completion status: its name, number and meaning.
    pub fn status(&self) -> String {
        let status = self.0.status;
        let (name, meaning) = describe(status);
        format!("{name} ({status}): {meaning}")
    }

    /// The vendor's own error number, for the vendor's support.
    pub fn vendor_err(&self) -> u32 {
        self.0.vendor_err
    }

    /// The completed operation, as libibverbs' number.
    pub fn opcode(&self) -> u32 {
        self.0.opcode
    }

    /// Bytes received; valid for receives.
    pub fn byte_len(&self) -> u32 {
        self.0.byte_len
    }

    /// The immediate of the peer's RDMA WRITE, if it carried one.
    pub fn imm(&self) -> Option<u32> {
        let brought = self.0.opcode == raw::IBV_WC_RECV_RDMA_WITH_IMM
            && self.0.wc_flags & raw::IBV_WC_WITH_IMM != 0;
        brought.then(|| u32::from_be(self.0.imm_data))
    }

    /// Number of the local queue pair.
    pub fn qp_num(&self) -> u32 {
        self.0.qp_num
    }
}

/// Defines the name and the meaning of each status.
macro_rules! statuses {
    ($($name:ident: $meaning:literal;)*) => {
        fn describe(status: u32) -> (&'static str, &'static str) {
            match status {
                $(raw::$name => (stringify!($name), $meaning),)*
                _ => ("unknown status", "a code that no reliable connection has"),
            }
        }
    };
}

statuses! {
    IBV_WC_SUCCESS: "done";
    IBV_WC_LOC_LEN_ERR: "a message longer than its receive, or than the port allows";
    IBV_WC_LOC_QP_OP_ERR: "this queue pair could not carry out the work request";
    IBV_WC_LOC_PROT_ERR: "the local address or key is not of a memory region";
    IBV_WC_WR_FLUSH_ERR: "given back undone, the queue pair is in ERR";
    IBV_WC_BAD_RESP_ERR: "the peer answered with something unexpected";
    IBV_WC_LOC_ACCESS_ERR: "the local memory region does not allow it";
    IBV_WC_REM_INV_REQ_ERR: "the peer found the request invalid (too long, or not enabled)";
    IBV_WC_REM_ACCESS_ERR: "the peer refused the address, the length or the key";
    IBV_WC_REM_OP_ERR: "the peer could not complete the operation";
    IBV_WC_RETRY_EXC_ERR: "the peer did not answer within all retries: link, path or peer is down";
    IBV_WC_RNR_RETRY_EXC_ERR: "the peer had no receive posted within all retries";
    IBV_WC_REM_ABORT_ERR: "the peer aborted the operation";
    IBV_WC_FATAL_ERR: "the device failed";
    IBV_WC_RESP_TIMEOUT_ERR: "the peer's answer came too late";
    IBV_WC_GENERAL_ERR: "the transport failed in another way";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_has_a_name_and_words() {
        let text = |status| {
            let raw = raw::ibv_wc::default();
            Wc(raw::ibv_wc { status, ..raw }).status()
        };
        let words = "IBV_WC_WR_FLUSH_ERR (5): given back undone, the queue pair is in ERR";
        assert_eq!(text(raw::IBV_WC_WR_FLUSH_ERR), words);
        assert!(text(99).contains("unknown status (99)"));
    }

    #[test]
    fn an_immediate_is_there_only_when_flagged_and_in_host_order() {
        let mut raw = raw::ibv_wc {
            imm_data: 0x0102_0304_u32.to_be(),
            opcode: raw::IBV_WC_RECV_RDMA_WITH_IMM,
            ..Default::default()
        };
        assert_eq!(Wc(raw).imm(), None);
        raw.wc_flags = raw::IBV_WC_WITH_IMM;
        assert_eq!(Wc(raw).imm(), Some(0x0102_0304));
    }
}
