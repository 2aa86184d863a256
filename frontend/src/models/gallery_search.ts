/** Search in the gallery of models. */

/** Whether every word of a search is in one of the texts. */
export function matches(search: string, texts: string[]): boolean {
  const haystack = texts.join('\n').toLowerCase()
  return search.toLowerCase().split(/\s+/).filter(Boolean).every((word) => haystack.includes(word))
}

/** A count with two digits and a unit: 5.7M, 135M, 920. */
export function shortCount(count: number): string {
  const [unit, size] = count >= 1e9 ? ['B', 1e9] : count >= 1e6 ? ['M', 1e6] : count >= 1e3 ? ['k', 1e3] : ['', 1]
  const scaled = count / Number(size)
  return `${scaled < 10 && unit ? scaled.toFixed(1) : Math.round(scaled)}${unit}`
}
