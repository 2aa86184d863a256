/** The range of a null over all heads, without missing values; null if there are none. */
export function nullRange(values: Float32Array): { low: number; high: number } | null {
  const finite = values.filter(Number.isFinite)
  return finite.length ? { low: finite.reduce((a, b) => Math.min(a, b)), high: finite.reduce((a, b) => Math.max(a, b)) } : null
}
