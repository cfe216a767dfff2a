package report

// Classes of XIDs: what is to be suspected. Only hardware and driver say
// something of the device; the others name a program, or another XID.
const (
	ClassHardware    = "hardware"
	ClassDriver      = "driver"
	ClassApplication = "application" // the program that ran is the first suspect
	ClassVictim      = "victim"      // comes in the wake of another error
	ClassInfo        = "info"
	ClassOther       = "other" // not in the table: the driver knows better
)

// What NVIDIA's catalogue advises at once.
const (
	AdviseNothing = ""
	AdviseApp     = "restart_app"
	AdviseReset   = "reset_gpu"
	AdviseReboot  = "restart_node"
	AdviseSupport = "contact_support"
)

// XIDKind is what the catalogue says of an XID.
type XIDKind struct {
	Code   int
	Name   string
	Class  string
	Advise string
}

// xids are the ones that say something about a device, from NVIDIA's catalogue
// (https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, "Xid
// Catalog", resolution buckets of A100 and newer). The class is this project's
// reading of the trigger and the buckets: RESTART_APP with CHECK_APP as
// investigation is an application's; 43 (IGNORE: a channel that its program's
// own error had reset) and 45 ("not solo: ignore, follow the other Xid") are
// victims; 154 only tells that the recovery action changed.
var xids = func() map[int]XIDKind {
	out := map[int]XIDKind{}
	for _, k := range []XIDKind{
		{11, "invalid or corrupted push buffer stream", ClassApplication, AdviseApp},
		{13, "graphics engine exception", ClassApplication, AdviseApp},
		{25, "invalid or illegal push buffer stream", ClassApplication, AdviseApp},
		{31, "GPU memory page fault", ClassApplication, AdviseApp},
		{32, "invalid or corrupted push buffer stream", ClassApplication, AdviseApp},
		{37, "driver firmware error", ClassApplication, AdviseNothing},
		{43, "GPU stopped processing", ClassVictim, AdviseNothing},
		{44, "graphics engine fault during context switch", ClassApplication, AdviseNothing},
		{45, "preemptive cleanup, due to previous errors", ClassVictim, AdviseNothing},
		{46, "GPU stopped processing", ClassDriver, AdviseReset},
		{48, "double bit ECC error", ClassHardware, AdviseReset},
		{54, "auxiliary power is not connected", ClassHardware, AdviseSupport},
		{62, "internal micro-controller halt", ClassHardware, AdviseReset},
		{63, "GPU memory remapping event", ClassHardware, AdviseNothing},
		{64, "GPU memory remapping failure", ClassHardware, AdviseReset},
		{66, "illegal access by driver", ClassDriver, AdviseNothing},
		{68, "video decoder exception", ClassApplication, AdviseApp},
		{69, "graphics engine class error", ClassApplication, AdviseApp},
		{74, "NVLink error", ClassHardware, AdviseReset},
		{79, "GPU has fallen off the bus", ClassHardware, AdviseReboot},
		{80, "corrupted data sent to GPU", ClassApplication, AdviseApp},
		{92, "high single-bit ECC error rate", ClassHardware, AdviseNothing},
		{94, "contained memory error", ClassHardware, AdviseApp},
		{95, "uncontained memory error", ClassHardware, AdviseReset},
		{109, "context switch timeout", ClassDriver, AdviseReset},
		{110, "security fault", ClassDriver, AdviseReset},
		{119, "GSP RPC timeout", ClassDriver, AdviseReset},
		{120, "GSP error", ClassDriver, AdviseReset},
		{121, "chip-to-chip link error", ClassHardware, AdviseNothing},
		{136, "link training failed", ClassHardware, AdviseReset},
		{137, "NVLink privilege error", ClassApplication, AdviseNothing},
		{140, "unrecovered ECC error", ClassHardware, AdviseReset},
		{143, "GPU initialization error", ClassHardware, AdviseReset},
		{144, "NVLink: SAW error", ClassHardware, AdviseReset},
		{145, "NVLink: RLW error", ClassHardware, AdviseReset},
		{146, "NVLink: TLW error", ClassHardware, AdviseReset},
		{147, "NVLink: TREX error", ClassHardware, AdviseReset},
		{148, "NVLink: NVLPW_CTRL error", ClassHardware, AdviseReset},
		{149, "NVLink: NETIR error", ClassHardware, AdviseReset},
		{150, "NVLink: MSE error", ClassHardware, AdviseReset},
		{154, "GPU recovery action changed", ClassInfo, AdviseNothing},
		{155, "NVLink: error defined by software", ClassDriver, AdviseReset},
		{156, "resource retirement event", ClassHardware, AdviseReset},
		{157, "resource retirement failure", ClassHardware, AdviseNothing},
		{158, "GPU fatal timeout", ClassHardware, AdviseReset},
		{160, "channel retirement event", ClassDriver, AdviseNothing},
		{161, "channel retirement failure", ClassDriver, AdviseNothing},
		{167, "PCIe fatal timeout", ClassHardware, AdviseReboot},
		{171, "uncorrectable DRAM error", ClassHardware, AdviseNothing}, // beside a 48
		{172, "uncorrectable SRAM error", ClassHardware, AdviseNothing}, // beside a 48
	} {
		out[k.Code] = k
	}
	return out
}()

// LookUpXID tells what the catalogue says. An XID that is not in it is of
// ClassOther: it accuses nobody.
func LookUpXID(code int) XIDKind {
	if k, ok := xids[code]; ok {
		return k
	}
	return XIDKind{Code: code, Name: "not in the catalogue", Class: ClassOther}
}

// Cause tells whether the XID says something of the device itself, and not of a
// program or of another XID.
func (x *XID) Cause() bool {
	return x.VictimOf == 0 && (x.Class == ClassHardware || x.Class == ClassDriver)
}
