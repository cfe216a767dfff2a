// Package nvml is NVIDIA's driver: what it says comes from NVML, loaded at run
// time (libnvidia-ml.so.1 of the driver that is there), and resets are carried
// out by nvidia-smi, since NVML has no call for one.
package nvml
