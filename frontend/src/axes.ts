/** Axes of the cloud as the link writes them: prediction · all · from:2 (without the first axis) · layer:3 · text:another text · tokens:on,of. */

export type Axes = { kind: 'prediction' } | { kind: 'all' } | { kind: 'from'; first: number } | { kind: 'layer'; layer: number } | { kind: 'text'; text: string } | { kind: 'tokens'; tokens: string[] }

export function parseAxes(axes: string): Axes {
  const colon = axes.indexOf(':')
  const [kind, value] = colon < 0 ? [axes, ''] : [axes.slice(0, colon), axes.slice(colon + 1)]
  if (axes === 'prediction') return { kind: axes }
  if (kind === 'from' && /^[1-4]$/.test(value)) return { kind, first: Number(value) }
  if (kind === 'layer' && /^\d+$/.test(value)) return { kind, layer: Number(value) }
  if (kind === 'text' && value) return { kind, text: value }
  if (kind === 'tokens' && value) return { kind, tokens: parseTokenList(value) }
  return { kind: 'all' }
}

/** Tokens separated by commas. A token id is written with a leading #. */
export const parseTokenList = (list: string): string[] => list.split(',').map((token) => token.trim()).filter(Boolean)

/** The name of each axis: its token, the star of the prediction, or a, b, c. Without the first axis they are b, c, d. */
export const axisNames = (axes: string): string[] => {
  const parsed = parseAxes(axes)
  const first = parsed.kind === 'from' ? parsed.first - 1 : 0
  return [0, 1, 2].map((index) => (parsed.kind === 'tokens' ? (parsed.tokens[index] ?? '') : parsed.kind === 'prediction' && index === 0 ? '★' : 'abcdef'[index + first]!))
}

/** A fraction in percent, with one decimal place below 10 %. */
export const percent = (fraction: number): string => (fraction < 0.0995 ? (fraction * 100).toFixed(1) : String(Math.round(fraction * 100)))

/** Every axis with its share of the variance. */
export const axisLabels = (axes: string, shares: number[]): { name: string; share: string }[] =>
  axisNames(axes).map((name, index) => ({ name, share: `${percent(shares[index] ?? 0)} %` })).filter(({ name }, index) => name && index < shares.length)

/** Above this share of the variance, one axis hides the others. */
const DOMINANT_SHARE = 0.5

/** The share of the first principal axis if it has most of the variance, so that the other axes are hard to see. */
export function dominantShare(axes: string, shares: number[]): number | null {
  const share = axes === 'all' ? shares[0] : axes === 'prediction' ? shares[1] : undefined
  return share !== undefined && share > DOMINANT_SHARE ? share : null
}
