/** Axes of the cloud as they stand in the link: all · layer:3 · text:a whole text · tokens:on,of. */

export type Axes = { kind: 'all' } | { kind: 'layer'; layer: number } | { kind: 'text'; text: string } | { kind: 'tokens'; tokens: string[] }

export function axesRead(axes: string): Axes {
  const at = axes.indexOf(':')
  const [kind, rest] = at < 0 ? [axes, ''] : [axes.slice(0, at), axes.slice(at + 1)]
  if (kind === 'layer' && /^\d+$/.test(rest)) return { kind, layer: Number(rest) }
  if (kind === 'text' && rest) return { kind, text: rest }
  if (kind === 'tokens' && rest) return { kind, tokens: tokensTyped(rest) }
  return { kind: 'all' }
}

/** What is typed between commas; a token may be told by its number behind a #. */
export const tokensTyped = (typed: string): string[] => typed.split(',').map((one) => one.trim()).filter(Boolean)

/** What each axis is called: by its token, or a, b, c. */
export const axisNames = (axes: string): string[] => {
  const read = axesRead(axes)
  return [0, 1, 2].map((at) => (read.kind === 'tokens' ? (read.tokens[at] ?? '') : 'abc'[at]!))
}

/** A share in percent; a small one with one digit more. */
export const percent = (share: number): string => (share < 0.0995 ? (share * 100).toFixed(1) : String(Math.round(share * 100)))

/** Every axis with its share of the variance; one that does not exist is not told. */
export const axesShown = (axes: string, shares: number[]): { name: string; share: string }[] =>
  axisNames(axes).map((name, at) => ({ name, share: `${percent(shares[at] ?? 0)} %` })).filter(({ name }, at) => name && at < shares.length)
