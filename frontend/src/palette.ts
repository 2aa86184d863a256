/** The colours of the report. Each has a contrast of at least 3:1 on light and dark pages and is safe for colour-blind readers. */
export const PALETTE: Record<string, string> = {
  first: '#2f6fbf', second: '#d9622b', third: '#2a9a74', fourth: '#a8559a', fifth: '#94801f', sixth: '#6d62cf', seventh: '#c23b4e', eighth: '#1f8fa6', null: '#8a93a6', alone: '#8a93a6',
}
export const CLUSTERS = ['first', 'second', 'third', 'fourth', 'fifth', 'sixth', 'seventh', 'eighth'] as const
export const ORDER_COLOURS = ['#2f6fbf', '#4a6cbb', '#6768b4', '#8263a8', '#9b5f97', '#b15d80', '#c35f62', '#d0623f']

export type Rgb = [number, number, number]

export interface Theme { ink: string; muted: string; line: string; paper: string; soft: string; accent: string }
export const LIGHT: Theme = { ink: '#1d2433', muted: '#5d6678', line: '#dde2ec', paper: '#ffffff', soft: '#f5f7fb', accent: '#2560a8' }
export const DARK: Theme = { ink: '#e8ecf4', muted: '#9aa5ba', line: '#2c3447', paper: '#12161f', soft: '#1a202c', accent: '#7db1f0' }

/** A colour by its name in the palette. A hex colour stays as it is. */
export const colourOf = (name: string): string => (name.startsWith('#') ? name : (PALETTE[name] ?? PALETTE.null!))

export const rgb = (hex: string): Rgb => [1, 3, 5].map((index) => parseInt(hex.slice(index, index + 2), 16)) as Rgb

export const mix = (a: Rgb, b: Rgb, fraction: number): Rgb => a.map((x, index) => Math.round(x + (b[index]! - x) * fraction)) as Rgb

export const css = ([r, g, b]: Rgb): string => `rgb(${r} ${g} ${b})`

/** The colour of a value from −1 to 1: paper at 0, the first colour above, the second below. */
export function shade(value: number, paper: Rgb): Rgb {
  const strength = Math.min(1, Math.abs(value))
  return mix(paper, rgb(value >= 0 ? PALETTE.first! : PALETTE.second!), strength)
}

/** The colour at a fraction (0 to 1) of an ordered sequence. */
export function orderColour(fraction: number): Rgb {
  const position = Math.max(0, Math.min(1, fraction)) * (ORDER_COLOURS.length - 1)
  const index = Math.min(Math.floor(position), ORDER_COLOURS.length - 2)
  return mix(rgb(ORDER_COLOURS[index]!), rgb(ORDER_COLOURS[index + 1]!), position - index)
}

export const clusterColour = (label: number): Rgb =>
  label < 0 ? rgb(PALETTE.alone!) : rgb(PALETTE[CLUSTERS[label % CLUSTERS.length]!]!)
